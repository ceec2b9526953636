"""Secrets of a delivery are shown nowhere: what wraps them, and what masks them in a log."""

from __future__ import annotations

import copy
import json
import pickle
from collections import UserDict, UserList
from typing import Any, NamedTuple

import attrs
import pytest

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.operators.recipients import MaskedValue, find_secrets, mask, mask_phones, unmask
from support.provider import build_new_transfer

SECRET = "555-0199"


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Airflow was told to mask."""
    told: list[str] = []
    monkeypatch.setattr("outbound_transfer.airflow_compat.names.mask_secret", told.append)
    return told


@pytest.mark.parametrize("show", [str, repr, "{}".format, lambda value: f"{value}", "%s".__mod__, ascii])
def test_a_masked_value_shows_as_stars(show: Any) -> None:
    assert show(MaskedValue(SECRET)) == "***"
    assert SECRET not in show([MaskedValue(SECRET)]) + show({"a": MaskedValue(SECRET)})


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_is_masked_and_has_the_same_secret(duplicate: Any) -> None:
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


class Person(NamedTuple):
    email: str
    name: str
    phone: str


@attrs.define
class Member:
    email: str
    phone: str


@pytest.mark.parametrize(
    "recipients",
    [
        Person("ann@example.com", "Ann", SECRET),
        [Person("ann@example.com", "Ann", SECRET)],
        [Member("ann@example.com", SECRET)],
        {"email": "ann@example.com", "contact": {"phone": SECRET}},
        [{"email": "ann@example.com", "mobile": SECRET}],
        [{"email": SECRET, "phone": "ann@example.com"}],
        [{"email": ["ann@example.com", SECRET]}],
        json.dumps([ANN]).encode(),
        [json.dumps(ANN).encode()],
        f"[{ANN}",
        json.dumps([ANN])[:-1],
        json.dumps(json.dumps([ANN])),
        [SECRET],
        5550199,
    ],
    ids=repr,
)
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
