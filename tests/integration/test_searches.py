"""Searches for what may have been sent: among many transfers, and on several pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.client import client
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.protocol.errors import MalformedResponse
from outbound_transfer.protocol.messages import Operation, Upload
from outbound_transfer.protocol.models import build_new_transfer
from support.deliveries import DELIVERY, billed
from support.tasks import FakeTaskInstance, SimulatedClock, again


def send_others(sandbox: Any, hook: Any, count: int) -> None:
    sandbox.patch_account(requests_per_window=1_000_000, outstanding_transfer_limit=1_000_000)
    for number in range(count):
        new = build_new_transfer(subject=f"Other {number}", recipients=["bob@example.com"])
        transfer = hook.create_transfer(new)
        hook.attach_file(transfer.id, Upload("o.csv", 1, lambda: iter([b"o"])))
        hook.send_transfer(transfer.id)


@contextmanager
def slow_pages(time: SimulatedClock, seconds: float, at_page: int, change: Any) -> Iterator[list[int]]:
    """Each page of a listing takes ``seconds``; before one of the last search's, something changes."""
    send, pages = client.send, []
    is_busy: list[bool] = []

    def slow(*arguments: Any) -> Any:
        if arguments[2].operation is Operation.LIST and not is_busy:
            pages.append(1)
            time.now += seconds
            if len(pages) == at_page:
                is_busy.append(True)
                change()
                is_busy.clear()
        return send(*arguments)

    with mock.patch.object(client, "send", slow):
        yield pages


def test_a_retried_index_of_many_with_the_same_people_is_delivered(
    connection: str, sandbox: Any, tmp_path: Path
) -> None:
    """``DeliverFilesOperator.partial(subject="Report", recipients=…, retries=3).expand(files=list_of_files)``.

    All other indexes have sent their own file, which has another name. The first try of the last one got 500 for its
    upload. Its retry has to look at each of the others, one call each, and waits for the rate among them; what it has
    seen, it does not look at again.
    """
    time, others = SimulatedClock(sandbox), 70

    def index(number: int) -> FakeTaskInstance:
        path = tmp_path / f"{number}.csv"
        path.write_text(f"content of {number}")
        ti = FakeTaskInstance(
            lambda: DeliverFilesOperator(task_id="task", files=str(path), **DELIVERY), time, retries=3
        )
        ti.map_index, ti.other_indexes = number, others
        return ti

    for number in range(others):
        index(number).run()
    last = index(others)
    fault = {"kind": "error", "method": "POST", "path": "*/files", "status": 500, "code": "internal_error"}
    sandbox.plan_faults(*[fault] * 8)
    last.run()
    assert len(billed(sandbox)) == others + 1


def test_what_another_index_sends_while_the_pages_are_read_is_not_sent_again(
    connection: str, sandbox: Any, hook: Any, tmp_path: Path
) -> None:
    """The service takes 9 s for each page of the list of sent transfers; 30 of them are older than the run.

    Index 0 was cleared, and searches before its send: 4 pages, until 25 rows are old. Between its first page and its
    second, index 2, which has its item now, sends it; the service lists that on a page after the oldest (R28), which
    is not read. So index 0 reads the first page again.
    """
    time = SimulatedClock(sandbox)
    send_others(sandbox, hook, 30)
    sandbox.advance_clock(2 * 3600)
    send_others(sandbox, hook, 330)
    path = tmp_path / "a.csv"
    path.write_text("a")

    def index(number: int, clear_number: int) -> FakeTaskInstance:
        ti = FakeTaskInstance(lambda: DeliverFilesOperator(task_id="task", files=str(path), **DELIVERY), time)
        ti.start_date += timedelta(hours=2)
        ti.map_index, ti.clear_number, ti.other_indexes = number, clear_number, 3
        return ti

    before = len(billed(sandbox))
    with slow_pages(time, 9.0, 6, lambda: index(2, 0).run()), pytest.raises(AirflowFailException, match="may be this"):
        index(0, 1).run()
    assert len(billed(sandbox)) == before + 1


@contextmanager
def unreadable(*transfer_ids: str) -> Iterator[None]:
    """The service shows transfers in a way that cannot be read, in its listing and by themselves."""
    send = client.send

    def spoil(*arguments: Any) -> Any:
        call, response = arguments[2], send(*arguments)
        if call.operation not in (Operation.LIST, Operation.GET):
            return response
        body = json.loads(response.body)
        rows = [row for row in body.get("data", [body]) if row["id"] in transfer_ids]
        for row in rows:
            row["status"] = None
        return replace(response, body=json.dumps(body).encode()) if rows else response

    with mock.patch.object(client, "send", spoil):
        yield


def test_a_row_that_cannot_be_read_stops_the_delivery_until_resend_names_it(
    connection: str, sandbox: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("a")
    task = FakeTaskInstance(
        lambda: DeliverFilesOperator(task_id="task", files=str(tmp_path / "a.csv"), **DELIVERY), SimulatedClock(sandbox)
    )
    first = task.run()["id"]
    task.store.values.clear()
    with unreadable(first):
        with pytest.raises(MalformedResponse, match=f"cannot be read .* add '{first}' to resend and clear the task"):
            again(task)
        second = again(task, resend=first)["id"]
        assert again(task)["id"] == second
    assert list(billed(sandbox)) == [first, second]
