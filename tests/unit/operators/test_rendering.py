"""What Airflow renders of the arguments, in each attempt: nothing else changes, and no secret shows."""

from __future__ import annotations

import copy
import json
import pickle
from collections import UserDict, UserList, namedtuple
from typing import Any
from unittest.mock import Mock

import attrs
import jinja2
import pytest
from airflow.sdk import DAG

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.operators.arguments import check_all
from outbound_transfer.operators.base import new_transfer
from outbound_transfer.operators.draft import CreateTransferOperator
from outbound_transfer.operators.recipients import (
    MaskedValue,
    RecipientsFromSql,
    find_secrets,
    mask,
    mask_phones,
    unmask,
)
from outbound_transfer.operators.redelivery import remind_recipients
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from support.provider import build_new_transfer

NEW: dict[str, Any] = {"subject": "S", "recipients": "ann@example.com"}
LINES = "a\r\nb\r\n"


def rendered(kind: type, context: dict[str, Any] | None = None, **arguments: Any) -> Any:
    operator = kind(task_id="task", **{**NEW, **arguments})
    operator.render_template_fields(context or {}, jinja2.Environment())
    return operator


@pytest.mark.parametrize("is_mapped", [False, True])
def test_text_that_is_not_a_template_stays_as_it_is(is_mapped: bool) -> None:
    files = {"name": "a.csv", "content": LINES}
    deliver = rendered(DeliverFilesOperator, files=files, _airflow_from_mapped=is_mapped)
    assert deliver.files["content"].value == LINES


def test_content_of_a_template_without_a_value_is_nothing() -> None:
    files = [{"name": "a.csv", "content": "{{ x }}"}, {"name": "b.csv", "content": "None"}]
    deliver = rendered(DeliverFilesOperator, {"x": None}, files=files)
    assert [each["content"].value for each in deliver.files] == [None, "None"]


def test_a_recipient_without_a_name_is_not_called_none() -> None:
    people = [{"email": "ann@example.com", "name": "{{ x }}"}, {"email": "bob@example.com", "name": "None"}]
    create = rendered(CreateTransferOperator, {"x": None}, recipients=people)
    assert [each.name for each in new_transfer(create, Mock()).recipients] == [None, "None"]


def test_a_query_for_recipients_is_rendered_again_in_each_attempt() -> None:
    operator = CreateTransferOperator(
        task_id="task", subject="S", recipients=RecipientsFromSql(sql="SELECT '{{ ds }}'", conn_id="c")
    )
    found = []
    for day in ("2026-01-01", "2026-01-02"):
        attempt = operator.prepare_for_execution()
        attempt.render_template_fields({"ds": day}, jinja2.Environment())  # type: ignore[typeddict-item]
        found.append(attempt.recipients.sql)
    assert found == ["SELECT '2026-01-01'", "SELECT '2026-01-02'"]


def test_parameters_of_a_query_keep_their_form() -> None:
    query = RecipientsFromSql(sql="S", conn_id="c", parameters={"ids": ("a", "{{ b }}"), "more": ["c"]})
    create = rendered(CreateTransferOperator, {"b": "B"}, recipients=query)
    assert unmask(create.recipients.parameters) == {"ids": ("a", "B"), "more": ["c"]}


def test_a_phone_beside_a_template_that_fails_is_masked(masked: list[str]) -> None:
    with pytest.raises(jinja2.UndefinedError):
        rendered(CreateTransferOperator, recipients=[{"email": "{{ x.y.z }}", "phone": "555-0199"}])
    assert "555-0199" in masked


def test_a_mapped_delivery_without_a_wait_refuses_what_it_would_ignore() -> None:
    deliver = DeliverFilesOperator(task_id="task", files="a", accept_partial=True, **NEW, _airflow_from_mapped=True)
    with pytest.raises(InvalidDelivery, match="accept_partial needs wait=True"):
        check_all(deliver, deliver.checks)


@pytest.mark.parametrize("argument", ["subject", "message", "security", "delivery_key", "file_name", "timezone"])
def test_a_text_that_a_native_template_makes_a_number_is_refused(argument: str) -> None:
    given: dict[str, Any] = {**NEW, "sql": "SELECT 1", "file_name": "a.csv", argument: "{{ x }}"}
    with DAG("dag", schedule=None, render_template_as_native_obj=True) as dag:
        deliver = SqlToOutboundTransferOperator(task_id="task", sql_conn_id="c", **given)
    deliver.render_template_fields({"x": 0.5}, dag.get_template_env())  # type: ignore[typeddict-unknown-key]
    with pytest.raises(InvalidDelivery, match=f"^{argument} must be a string, not float: quote it within the template"):
        check_all(deliver, deliver.checks)


def test_a_name_that_a_native_template_makes_a_number_is_refused() -> None:
    recipients = [{"email": "ann@example.com", "name": "{{ x }}"}]
    with DAG("dag", schedule=None, render_template_as_native_obj=True) as dag:
        deliver = DeliverFilesOperator(task_id="task", files="a.csv", **NEW | {"recipients": recipients})
    deliver.render_template_fields({"x": 0.5}, dag.get_template_env())  # type: ignore[typeddict-unknown-key]
    with pytest.raises(InvalidDelivery, match=r"recipient 1: .* got `float` - at `\$\.name`"):
        check_all(deliver, deliver.checks)


@pytest.mark.parametrize("given", [{"on_expired": "succeed"}, {"accept_partial": True}, {"timeout": 60.0}])
def test_default_args_for_waits_do_not_stop_a_delivery_that_does_not_wait(given: dict[str, Any]) -> None:
    with DAG("dag", schedule=None, default_args=given):
        deliver = DeliverFilesOperator(task_id="deliver", files="a.csv", **NEW)
        TransferSensor(task_id="wait", transfer_id=deliver.output)
    check_all(deliver, deliver.checks)


def test_a_reminder_does_not_take_what_default_args_have_for_deliveries() -> None:
    arguments: dict[str, Any] = {"recipients": "eve@example.com", "subject": "S", "message": "M", "delivery_key": "k"}
    with DAG("dag", schedule=None, default_args={**arguments, "send": False}):
        deliver = DeliverFilesOperator(task_id="deliver", files="a.csv", **NEW)
        reminder = remind_recipients(deliver)
    assert ([getattr(reminder, name) for name in arguments], reminder.send) == ([None] * 4, True)


@pytest.mark.parametrize("given", ["files", "transfer_id"])
def test_a_reminder_is_of_what_was_delivered(given: str) -> None:
    with DAG("dag", schedule=None):
        deliver = DeliverFilesOperator(task_id="deliver", files="a.csv", **NEW)
        with pytest.raises(TypeError, match=given):
            remind_recipients(deliver, **{given: "b.csv"})


SECRET = "555-0199"


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Airflow was told to mask."""
    told: list[str] = []
    monkeypatch.setattr("outbound_transfer.airflow_compat.names.mask_secret", told.append)
    return told


def test_a_masked_value_and_its_copies_show_as_stars() -> None:
    for show in (str, repr, "{}".format, lambda value: f"{value}", "%s".__mod__, ascii):
        assert show(MaskedValue(SECRET)) == "***"
        assert SECRET not in show([MaskedValue(SECRET)]) + show({"a": MaskedValue(SECRET)})
    for duplicate in (copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
        again = duplicate(MaskedValue(SECRET))
        assert (repr(again), unmask(again)) == ("***", SECRET)


ANN = {"email": "ann@example.com", "name": "Ann", "phone": SECRET}


@pytest.mark.parametrize(
    "recipients",
    [ANN, [ANN], (ANN, "bob@example.org"), [[ANN]], UserDict(ANN), UserList([ANN]), {"a": ANN}.values()],
    ids=repr,
)
def test_phones_are_masked_in_every_form_of_recipients(masked: list[str], recipients: Any) -> None:
    hidden = mask_phones(recipients)
    assert SECRET not in repr(hidden)
    assert "ann@example.com" in repr(hidden)
    assert masked == [SECRET]
    assert SECRET in repr(unmask(hidden))


Person = namedtuple("Person", "email name phone")
Member = attrs.make_class("Member", ["email", "phone"])


@pytest.mark.parametrize(
    "recipients",
    [
        Person("ann@example.com", "Ann", SECRET), [Person("ann@example.com", "Ann", SECRET)],
        [Member("ann@example.com", SECRET)], {"email": "ann@example.com", "contact": {"phone": SECRET}},
        [{"email": "ann@example.com", "mobile": SECRET}], [{"email": SECRET, "phone": "ann@example.com"}],
        [{"email": ["ann@example.com", SECRET]}], json.dumps([ANN]).encode(), [json.dumps(ANN).encode()],
        f"[{ANN}", json.dumps([ANN])[:-1], json.dumps(json.dumps([ANN])), [SECRET], 5550199,
    ],
    ids=repr,
)  # fmt: skip
def test_an_invalid_recipient_shows_no_phone(masked: list[str], recipients: Any) -> None:
    hidden = mask_phones(recipients)
    assert "0199" not in repr(hidden)
    with pytest.raises(InvalidDelivery) as refused:
        build_new_transfer(subject="S", recipients=unmask(hidden))
    assert "0199" not in str(refused.value)


@pytest.mark.parametrize("write", [json.dumps, repr, lambda value: f"\n {json.dumps(value, indent=2)}\n"])
@pytest.mark.parametrize("recipients", [ANN, [ANN], [ANN, "bob@example.org"], ["ann@example.com"]], ids=repr)
def test_recipients_as_text_equal_the_value_of_the_text(masked: list[str], recipients: Any, write: Any) -> None:
    hidden = mask_phones(write(recipients))
    assert unmask(hidden) == recipients
    assert SECRET not in repr(hidden)


def test_the_wrapped_secrets_are_known(masked: list[str]) -> None:
    recipients = mask_phones([ANN, {"email": "bob@example.org", "mobile": "555-0177"}])
    assert set(find_secrets([mask("answer"), recipients])) == {"answer", SECRET, "555-0177"}
