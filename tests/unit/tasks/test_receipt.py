"""The document of a receipt keeps to its published schema, and its id leads nowhere but into its folder."""

from __future__ import annotations

import json
import os.path
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.delivery.memory import InputDigests, Memory, Scope, Writer
from outbound_transfer.files.attached import AttachedFile
from outbound_transfer.operators.transfer import DeliverFilesOperator, SendTransferOperator
from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.protocol.models import SECURITY_OPTIONS, File, Recipient, Transfer, build_new_transfer
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.tasks.receipt import ReceiptFacts, build_receipt, check_receipt, publish_facts, receipt_path
from support.repository import REPOSITORY

SCHEMA = json.loads((REPOSITORY / "plugins/outbound_transfer/receipt.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
ACCOUNT = "https://files.example.com"

optional_texts = st.none() | st.text()
files = st.builds(File, st.text(), st.text(), st.integers())
recipients = st.builds(Recipient, st.text(), optional_texts, optional_texts)
transfers = st.builds(
    Transfer,
    st.text(),
    st.text().filter(lambda status: status != "draft") | st.sampled_from(["pending", "expired"]),
    st.text(),
    expires_at=optional_texts,
    message=st.text(),
    recipients=st.lists(recipients, max_size=4).map(tuple),
    files=st.none() | st.lists(files, max_size=4).map(tuple),
    sent_at=optional_texts,
)
task_instances = st.builds(
    SimpleNamespace,
    dag_id=st.text(),
    run_id=st.text(),
    task_id=st.text(),
    map_index=st.none() | st.integers(-1),
    try_number=st.integers(1),
)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)


@st.composite
def known(draw: Any, transfer: Transfer) -> list[ReceiptFacts]:
    """What several tasks have published of the transfer, and of others."""
    ids = st.sampled_from([file.id for file in transfer.files]) if transfer.files else st.text()
    return draw(
        st.lists(
            st.builds(
                ReceiptFacts,
                st.just(transfer.id) | st.text(),
                st.just(ACCOUNT) | st.text(),
                st.none() | st.sampled_from([*SECURITY_OPTIONS, "account_default"]),
                st.dictionaries(ids, digests, max_size=4),
            ),
            max_size=4,
        )
    )


def approvals(transfer: Transfer) -> st.SearchStrategy[list[dict[str, Any]]]:
    ids = st.just(transfer.id) | st.text()
    return st.lists(st.fixed_dictionaries({"transfer_id": ids, "code": st.text(), "by": st.text(), "at": st.text()}))


def keys_of(schema: dict[str, Any], document: Any, at: str = "") -> dict[str, set[str]]:
    """The properties of each object of the document, or those that the schema describes, by its place."""
    found = {}
    if isinstance(document, dict):
        found[at] = set(schema["properties"]) if schema else set(document)
        for name, value in document.items():
            found |= keys_of(schema and schema["properties"][name], value, f"{at}/{name}")
    for item in document if isinstance(document, list) else ():
        found |= keys_of(schema and schema["items"], item, f"{at}[]")
    return found


@given(st.data(), transfers, task_instances)
def test_each_receipt_keeps_to_the_schema(data, transfer, ti) -> None:
    facts = data.draw(known(transfer))
    document = json.loads(
        msgspec.json.encode(build_receipt(transfer, facts, data.draw(approvals(transfer)), ACCOUNT, ti))
    )

    VALIDATOR.validate(document)
    assert keys_of({}, document) == keys_of(SCHEMA, document), "the schema describes each field, and no other"
    assert [recipient["email"] for recipient in document["recipients"]] == [one.email for one in transfer.recipients]
    ours = [one for one in facts if (one.transfer_id, one.account) == (transfer.id, ACCOUNT)]
    for file in document["files"] or ():
        assert file["sha256"] in {None, *(one.sha256.get(file["id"]) for one in ours)}, "not that of another transfer"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema_version", 2),
        ("recipients", None),
        ("files", [{"id": "1", "name": "a", "size": 1, "sha256": "no digest"}]),
        ("account", None),
        ("transfer", {"id": "1"}),
    ],
)
def test_the_schema_refuses_another_document(field, value) -> None:
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="task", map_index=-1, try_number=1)
    document = build_receipt(Transfer("1", "pending", "Report"), [], [], ACCOUNT, ti)
    assert VALIDATOR.is_valid(document)
    assert not VALIDATOR.is_valid({**document, field: value})


@given(st.text())
@example("..")
@example("../../etc/cron.d/x")
@example("a/b")
@example("/etc/passwd")
@example("a\\..\\b")
@example("%2e%2e%2f")
@example("\0")
@example("x" * 5_000)
@example("\ud800")
def test_an_id_leads_nowhere_but_into_the_folder(transfer_id) -> None:
    path = receipt_path("/data/{transfer_id}/{transfer_id}.json", transfer_id)
    folder, name = os.path.split(os.path.normpath(path))
    assert (os.path.dirname(folder), f"{os.path.basename(folder)}.json") == ("/data", name)
    assert len(name.encode()) <= 255


@given(st.lists(st.text(), unique=True, min_size=2, max_size=2))
def test_each_id_has_a_path_of_its_own(ids) -> None:
    assert len({receipt_path("/data/{transfer_id}.json", each) for each in ids}) == 2


GOOD = [
    "s3://aws_default@bucket/receipts/{transfer_id}.json",
    "s3://bucket/{transfer_id}",
    "sftp://host@/{transfer_id}/receipt.json",
    "file:///data/{transfer_id}.json",
    "/data/{transfer_id}/{transfer_id}.json",
]
BAD = [
    "",
    "None",
    "s3://bucket/receipt.json",
    "s3://bucket/{id}.json",
    "s3://bucket/{transfer_id}-{run_id}.json",
    "s3://bucket/{transfer_id}}.json",
    "s3://bucket/{transfer_id}}",
    "s3://bucket/{{transfer_id}}.json",
    "s3://{transfer_id}/receipt.json",
    "s3://{transfer_id}@bucket/receipt.json",
    "{transfer_id}://bucket/receipt.json",
    "/data/{transfer_id}/",
    "receipts/{transfer_id}.json",
    "s3://bucket/receipt?{transfer_id}.json",
    "s3://bucket/receipt#{transfer_id}.json",
    "s3://bucket#/{transfer_id}.json",
    "s3://bucket/{transfer_id}.json\n",
    7,
    ["/data/{transfer_id}.json"],
]


@pytest.mark.parametrize("receipt", GOOD)
def test_a_file_with_the_id_in_its_path_is_a_receipt(receipt) -> None:
    check_receipt(receipt)


@pytest.mark.parametrize("receipt", BAD)
def test_anything_else_is_not(receipt) -> None:
    with pytest.raises(InvalidDelivery, match="receipt must be the URI or the absolute path"):
        check_receipt(receipt)


MAKERS = [
    lambda **given: DeliverFilesOperator(task_id="t", subject="s", recipients="ann@example.com", files="/a", **given),
    lambda **given: SendTransferOperator(task_id="t", transfer_id="1", **given),
    lambda **given: TransferSensor(task_id="t", transfer_id="1", **given),
]


@pytest.mark.parametrize("make", MAKERS)
def test_it_is_checked_as_soon_as_it_is_known(make) -> None:
    with pytest.raises(InvalidDelivery):
        make(receipt="/data/receipt.json")
    assert make(receipt=Path("/data/{transfer_id}.json")).receipt == "/data/{transfer_id}.json"
    assert make().receipt is None

    operator = make(receipt="{{ var.value.receipts }}/{transfer_id}.json")
    operator.receipt = "None/{transfer_id}.json"
    with pytest.raises(AirflowFailException, match="receipt must be"):
        operator.execute({})
    assert "receipt" in operator.template_fields


def memory_of(security: str | None, **files: AttachedFile) -> Memory:
    new = build_new_transfer(subject="Report", recipients="ann@example.com", security=security)
    given = InputDigests.of(new, [], "key")
    return Memory(Writer(1, 0), Scope(ACCOUNT, ""), draft_id="tr_1", input=given, files=files)


@pytest.mark.parametrize(
    ("sent_with", "given_now", "published"),
    [("email", "email", "email"), (None, None, "account_default"), ("email", "none", None), (None, "email", None)],
)
def test_the_option_is_that_of_the_send_or_not_known(sent_with, given_now, published) -> None:
    xcoms: dict[str, Any] = {}
    context: Any = {"ti": SimpleNamespace(xcom_push=xcoms.__setitem__)}
    attached = AttachedFile(1, sha256="ab", file_id="f_1")

    publish_facts(context, memory_of(sent_with, a=attached, b=AttachedFile(1)), given_now)

    (facts,) = xcoms.values()
    known = {"sha256": {"f_1": "ab"}, "secrets": ""}
    assert facts == {"transfer_id": "tr_1", "account": ACCOUNT, "security": published, **known}
