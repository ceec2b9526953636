"""Files at, below and over the account's size limit."""

from __future__ import annotations

import pytest

from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator
from support.airflow_names import AirflowFailException
from support.deliveries import DELIVERY, counts, digest
from support.tasks import task_instance

LIMIT = 1024 * 1024


@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
def test_a_file_up_to_the_limit_is_delivered(deliver, sandbox, stored, tmp_path, size) -> None:
    sandbox.patch_account(per_file_limit_mb=1)
    file = tmp_path / "report.bin"
    file.write_bytes(b"\xa5" * size)

    result = deliver(file).run()

    assert [record["size"] for record in result["files"] or []] in ([], [size])
    assert stored(result["id"]) == {"report.bin": digest(b"\xa5" * size)}


@pytest.fixture
def too_large(sandbox, tmp_path) -> str:
    """A glob of three files, of which the second is a byte over the limit."""
    sandbox.patch_account(per_file_limit_mb=1)
    for name, size in (("a.bin", LIMIT), ("b.bin", LIMIT + 1), ("c.bin", 1)):
        (tmp_path / name).write_bytes(bytes(size))
    return f"{tmp_path}/*.bin"


TOO_LARGE = r"file_too_large.*b\.bin.*2 MB.*1 MB.*split it or have the limit raised"


def test_a_byte_over_the_limit_uploads_nothing_and_says_what_to_do(deliver, sandbox, stored, too_large) -> None:
    ti = deliver(too_large, retries=3)

    for tries in (1, 2):
        with pytest.raises(AirflowFailException, match=TOO_LARGE):
            ti.run()
        assert ti.try_number == tries, "no retry would end otherwise"
        assert counts(sandbox)["POST", "files", 201] == 0, "not the files that are small enough either"
        ti.clear()

    assert counts(sandbox)["POST", "files", 413] == 2, "in each try the first upload, and the only one"
    assert sandbox.ledger() == []
    sandbox.patch_account(per_file_limit_mb=2)
    assert set(stored(ti.run()["id"])) == {"a.bin", "b.bin", "c.bin"}
    assert counts(sandbox)["POST", "files", 201] == 3


def test_attaching_alone_uploads_nothing_over_the_limit(connection, sandbox, time, stored, too_large) -> None:
    transfer_id = task_instance(CreateTransferOperator, time, **DELIVERY).run()
    attach = task_instance(AttachFilesOperator, time, transfer_id=transfer_id, files=too_large)

    with pytest.raises(AirflowFailException, match=TOO_LARGE):
        attach.run()

    assert stored(transfer_id) == {}
    sandbox.patch_account(per_file_limit_mb=2)
    attach.clear()
    assert [file["name"] for file in attach.run()] == ["a.bin", "b.bin", "c.bin"], (
        "in the order in which they were named"
    )
