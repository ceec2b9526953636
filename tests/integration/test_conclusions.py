"""What a delivery concludes from what it finds, and from what it does not find."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from outbound_transfer.airflow_compat.names import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowTaskTimeout,
    TaskDeferred,
)
from outbound_transfer.client import client
from outbound_transfer.delivery.memory_store import StateLost
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    DiscardTransferOperator,
    SendTransferOperator,
)
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.errors import (
    CallError,
    DraftChanged,
    InvalidDelivery,
    MalformedResponse,
    NotConnected,
    SourceError,
)
from outbound_transfer.protocol.messages import Operation
from outbound_transfer.protocol.models import build_new_transfer
from outbound_transfer_sandbox.testing import Sandbox, running_sandbox
from support.connections import connection_json
from support.tasks import (
    FakeTaskInstance,
    InMemoryStateStore,
    ProcessCrashed,
    SimulatedClock,
    again,
    dying_after,
    without_credit,
)

CONNECTION = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"
DELIVERY: dict[str, Any] = {"subject": "Report", "recipients": ["ann@example.com"]}

Make = Callable[..., FakeTaskInstance]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000)
    return [str(path) for path in paths]


@pytest.fixture
def task(connection, sandbox) -> Make:
    time = SimulatedClock(sandbox)

    def make(operator: type, *, retries: int = 0, **arguments: Any) -> FakeTaskInstance:
        return FakeTaskInstance(lambda: operator(task_id="task", **arguments), time, retries)

    return make


@pytest.fixture
def deliver(task, files) -> Make:
    return lambda **arguments: task(DeliverFilesOperator, **{"files": files, **DELIVERY, **arguments})


def billed(sandbox: Sandbox) -> list[str]:
    return [row["transfer_id"] for row in sandbox.ledger() if row["kind"] == "billed"]


def names(client, transfer_id: str) -> list[str]:
    return sorted(file.name for file in client.list_files(transfer_id))


# What is not remembered.


def test_a_task_whose_state_is_lost_after_the_send_does_not_send_again(deliver, sandbox) -> None:
    ti = deliver(retries=1)
    sent = ti.run()["id"]
    ti.store.values.clear()
    before = len(sandbox.requests())

    for _ in range(2):
        with pytest.raises(AirflowFailException, match=f"{sent} may be this very delivery.*add '{sent}' to resend"):
            again(ti)

    assert billed(sandbox) == [sent]
    assert not [call for call in sandbox.requests()[before:] if call["method"] != "GET"]


def test_a_task_whose_state_is_lost_before_the_send_delivers(deliver, sandbox, files) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)
    ti = deliver()
    with pytest.raises(AirflowFailException, match="no_credit"):
        ti.run()
    ti.store.values.clear()
    sandbox.patch_account(credits=1)

    sent = again(ti)["id"]
    assert billed(sandbox) == [sent]


def test_a_lost_state_can_be_overruled_by_a_clear_with_resend(deliver, sandbox) -> None:
    ti = deliver()
    first = ti.run()["id"]
    ti.store.values.clear()

    second = again(ti, resend=first)["id"]
    assert billed(sandbox) == [first, second]


def test_a_lost_state_is_not_overruled_by_the_id_of_another_transfer(deliver, sandbox) -> None:
    ti = deliver()
    first = ti.run()["id"]
    second = again(ti, resend=first)["id"]
    ti.store.values.clear()
    ti.try_number += 1  # an automatic retry: Airflow did not hear of the last try's end

    with pytest.raises(AirflowFailException, match=f"{second} may be this very delivery"):
        ti.run_once()
    assert billed(sandbox) == [first, second]


def test_a_first_try_that_made_nothing_leaves_a_state(deliver, sandbox, files) -> None:
    """Another run has sent just the same; that this one has not is known, not concluded from silence."""
    deliver().run()
    Path(files[0]).rename(Path(files[0]).with_name("later"))
    ti = deliver()
    with pytest.raises(SourceError):
        ti.run()
    Path(files[0]).with_name("later").rename(files[0])
    before = len(sandbox.requests())

    again(ti)

    assert len(billed(sandbox)) == 2
    assert len(sandbox.requests()) - before == len(files) + 2, "and nothing was asked"


class Silent(InMemoryStateStore):
    """A store whose reads are answered with nothing, and whose writes may be lost, too."""

    def __init__(self, *, takes: bool) -> None:
        super().__init__()
        self.takes = takes

    def get(self, key: str, default: Any = None) -> Any:
        return default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        if self.takes:
            super().set(key, value, retention=retention)


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("operator", [DeliverFilesOperator, CreateTransferOperator])
def test_nothing_is_created_where_the_state_store_keeps_nothing(task, sandbox, files, operator, takes) -> None:
    arguments = {"files": files} if operator is DeliverFilesOperator else {}
    ti = task(operator, **DELIVERY, **arguments)
    ti.store = Silent(takes=takes)

    with pytest.raises(StateLost, match="nothing was created"):
        ti.run()

    assert sandbox.requests() == []


def test_a_try_that_was_given_up_does_not_overwrite_a_later_state(deliver, sandbox) -> None:
    ti = deliver(retries=1)
    sent = ti.run()["id"]
    first = ti.store.values.copy()
    assert again(ti)["id"] == sent
    # The first try comes back to life, and writes what it knew in the middle of it.
    ti.store.values.update(
        {key: value.replace('"send_started": true', '"send_started": false') for key, value in first.items()}
    )

    assert again(ti)["id"] == sent
    assert billed(sandbox) == [sent]


def test_a_try_that_airflow_has_given_up_sends_nothing(deliver, sandbox) -> None:
    ti = deliver()
    ti.state = "failed"

    with pytest.raises(AirflowFailException, match="given this try up .the task is failed.: nothing is sent"):
        ti.run()

    assert billed(sandbox) == []


# Deferral within a try.


@dataclass
class SlowStore(InMemoryStateStore):
    """A store of which one access, counted from 0, is late: everything else happens first."""

    at: int = -1
    meanwhile: Callable[[], object] = lambda: None

    def get(self, key: str, default: Any = None) -> Any:
        self.step()
        return super().get(key, default)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self.step()
        super().set(key, value, retention=retention)

    def step(self) -> None:
        self.at -= 1
        if self.at == -1:
            self.meanwhile()


@pytest.mark.parametrize("at", range(12))
def test_a_try_that_is_late_at_its_store_takes_no_fence_back(deliver, sandbox, at) -> None:
    """Airflow gives it up, and the next one runs to its end, at each access to the store."""
    late, next_ = deliver(), deliver()
    next_.try_number = 1
    late.store = store = SlowStore(at=at, meanwhile=next_.run)
    next_.store = InMemoryStateStore(store.values)
    with pytest.raises((StateLost, AirflowFailException)):
        late.run()
    assert next_.result
    assert billed(sandbox) == [next_.result["id"]]


def test_a_state_that_is_lost_while_the_task_is_deferred_is_noticed(deliver, sandbox) -> None:
    other = deliver().run()["id"]
    sandbox.plan_faults({"kind": "error", "method": "POST", "path": "*/send", "status": 429, "retry_after": "30"})
    ti = deliver(deferrable=True)
    sleep = ti.time.sleep

    def sleep_and_forget(seconds: float) -> None:
        sleep(seconds)
        ti.store.values.clear()

    ti.time.sleep = sleep_and_forget

    with pytest.raises(AirflowFailException, match=f"{other}.*may be this very delivery"):
        ti.run()
    assert billed(sandbox) == [other]


# Items of a mapped task, and tasks with other names.


def mapped(ti: FakeTaskInstance, index: int, *, clear_number: int) -> FakeTaskInstance:
    ti.map_index, ti.clear_number = index, clear_number
    return ti


def test_an_item_that_the_cleared_run_has_sent_under_another_index_is_not_sent_again(deliver, sandbox) -> None:
    sent = mapped(deliver(), 2, clear_number=0).run()["id"]

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        mapped(deliver(), 3, clear_number=1).run()

    assert billed(sandbox) == [sent]


def test_a_new_item_of_a_cleared_run_is_sent(deliver, sandbox, files, tmp_path) -> None:
    first = mapped(deliver(), 2, clear_number=0).run()["id"]
    (tmp_path / "another.csv").write_text("another")
    others = [{"files": [str(tmp_path / "another.csv")]}, {"recipients": ["bob@example.com"]}, {"subject": "Other"}]

    sent = [mapped(deliver(**other), 3, clear_number=1).run()["id"] for other in others]

    assert billed(sandbox) == [first, *sent]


@pytest.mark.parametrize("change", ["grew", "is left out"])
def test_an_item_whose_source_has_changed_is_not_sent_again_under_another_index(
    deliver, sandbox, files, change
) -> None:
    sent = mapped(deliver(), 2, clear_number=0).run()["id"]
    arguments = {}
    if change == "grew":
        Path(files[0]).write_bytes(Path(files[0]).read_bytes() + b"more")
    else:
        arguments["files"] = files[1:]

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        mapped(deliver(**arguments), 3, clear_number=1).run()

    assert billed(sandbox) == [sent]


def test_equal_items_of_a_run_that_was_not_cleared_are_all_sent(deliver, sandbox) -> None:
    sent = [mapped(deliver(), index, clear_number=0).run()["id"] for index in range(3)]
    assert billed(sandbox) == sent


def test_a_task_with_another_name_does_not_send_what_the_run_has_sent(deliver, sandbox) -> None:
    sent = deliver().run()["id"]
    renamed = deliver()
    renamed.other_tasks = 1

    with pytest.raises(AirflowFailException, match=f"{sent} may be this very delivery"):
        renamed.run()

    assert billed(sandbox) == [sent]


def test_what_was_sent_before_the_run_began_is_another_delivery(deliver, sandbox) -> None:
    deliver().run()
    renamed = deliver()
    renamed.other_tasks = 1
    renamed.start_date += timedelta(hours=2)  # of the run, too

    assert renamed.run()["id"]
    assert len(billed(sandbox)) == 2


# What is found under an id.


@pytest.fixture
def elsewhere(monkeypatch):
    """Lead the connection to another account."""
    with running_sandbox() as other:

        def move() -> Sandbox:
            monkeypatch.setenv(CONNECTION, connection_json(other))
            return other

        yield move


def test_a_connection_that_leads_elsewhere_after_the_send_sends_nothing_there(deliver, elsewhere) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    other = elsewhere()

    with pytest.raises(
        AirflowFailException,
        match=f"{sent} was sent by an earlier try, .*, and the connection leads to",
    ):
        again(ti)

    assert other.requests() == []


def test_a_connection_that_leads_elsewhere_before_the_send_delivers_there_in_a_draft_of_its_own(
    deliver, sandbox, elsewhere
) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)
    ti = deliver()
    with pytest.raises(AirflowFailException, match="no_credit"):
        ti.run()
    other = elsewhere()

    sent = again(ti)["id"]
    assert billed(other) == [sent]
    assert not [call for call in other.requests() if call["method"] == "GET"], "the id is of the other account"


@pytest.mark.parametrize("operator", [AttachFilesOperator, SendTransferOperator])
def test_a_step_whose_connection_leads_elsewhere_does_nothing_there(task, files, elsewhere, operator) -> None:
    create = task(CreateTransferOperator, **DELIVERY)
    draft = create.run()
    attach = task(AttachFilesOperator, transfer_id=draft, files=files)
    attach.run()
    send = task(SendTransferOperator, transfer_id=draft)
    send.upstream = {"create": create}
    send.run()
    other = elsewhere()

    with pytest.raises(AirflowFailException, match=f"led to .* transfer {draft}"):
        again(attach if operator is AttachFilesOperator else send)

    assert other.requests() == []


@pytest.mark.parametrize("operator", [AttachFilesOperator, SendTransferOperator])
def test_a_draft_of_another_account_is_not_read_here(task, files, elsewhere, operator) -> None:
    create = task(CreateTransferOperator, **DELIVERY)
    arguments = {"files": files} if operator is AttachFilesOperator else {}
    ti = task(operator, transfer_id=create.run(), **arguments)
    ti.upstream = {"create": create}
    other = elsewhere()

    with pytest.raises(AirflowFailException, match="led to .* when the run began with transfer"):
        ti.run()

    assert other.requests() == []


def someone_elses(ti: FakeTaskInstance, transfer_id: str) -> None:
    """The task's id is another transfer's now, as in an account with ids of its own under the same address."""
    own = ti.xcoms["transfer_id"]
    ti.store.values = {key: value.replace(own, transfer_id) for key, value in ti.store.values.items()}


def test_somebody_elses_draft_under_the_id_is_neither_filled_nor_sent_nor_discarded(deliver, sandbox, hook) -> None:
    theirs = hook.create_transfer(build_new_transfer(subject="Theirs", recipients=["bob@example.com"]))
    sandbox.patch_account(billing="per_transfer", credits=0)
    ti = deliver()
    with pytest.raises(AirflowFailException, match="no_credit"):
        ti.run()
    someone_elses(ti, theirs.id)
    sandbox.patch_account(credits=1)

    result = again(ti)

    assert billed(sandbox) == [result["id"]] != [theirs.id]
    assert hook.get_transfer(theirs.id).is_draft
    assert names(hook, theirs.id) == []


def test_somebody_elses_sent_transfer_does_not_pass_for_ours(deliver, sandbox) -> None:
    theirs = deliver(subject="Theirs").run()["id"]
    ti = deliver()
    sent = ti.run()["id"]
    someone_elses(ti, theirs)

    with pytest.raises(AirflowFailException, match="does not show it any more"):
        again(ti)

    assert billed(sandbox) == [theirs, sent]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"subject": "Other"}, "to other recipients or with another subject"),
        ({"files": [{"id": "f", "name": "a.csv", "size": 1000}]}, r"it holds \['a.csv'\]"),
    ],
    ids=["subject", "files"],
)
def test_a_response_to_the_send_about_another_transfer_is_reported(deliver, sandbox, monkeypatch, change, said) -> None:
    send_transfer = endpoints.send_transfer

    def send_with_other_response(transfer_id: str) -> Any:
        call = send_transfer(transfer_id)
        return replace(call, decode=lambda response: altered(call.decode(response)))

    def altered(transfer: Any) -> Any:
        return msgspec.convert({**msgspec.to_builtins(transfer), **change}, type(transfer))

    monkeypatch.setattr(endpoints, "send_transfer", send_with_other_response)

    with pytest.raises(AirflowFailException, match=f"was sent, but .*{said}"):
        deliver().run()
    assert len(billed(sandbox)) == 1


def test_what_was_sent_to_others_is_found_where_the_record_is_lost(deliver, sandbox) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    ti.store.values.clear()

    with pytest.raises(AirflowFailException, match=f"Transfer {sent} may be this very delivery"):
        again(ti, recipients=["bob@example.com", "ann@example.com"])
    assert billed(sandbox) == [sent]


def test_what_another_task_of_the_run_sends_to_some_of_them_is_another_delivery(deliver, sandbox) -> None:
    one, ti = deliver(), deliver(recipients=["bob@example.com", "ann@example.com"])
    ti.upstream["one"] = one
    ti.try_number, ti.max_tries = 1, 2  # a try was killed before it began

    sent = [one.run()["id"], ti.run()["id"]]
    assert sorted(billed(sandbox)) == sorted(sent)


# What is gone.


def test_steps_that_are_cleared_after_the_sent_transfer_was_deleted_do_not_send_another(task, sandbox, files) -> None:
    create = task(CreateTransferOperator, **DELIVERY)
    first = create.run()
    task(AttachFilesOperator, transfer_id=first, files=files).run()
    task(SendTransferOperator, transfer_id=first).run()
    sandbox.plan_faults({"kind": "error", "method": "GET", "path": f"*/{first}", "status": 404})

    with pytest.raises(AirflowFailException, match=f"{first} was sent by an earlier try, or may have been"):
        again(create)
    assert billed(sandbox) == [first]


def test_a_removal_whose_process_dies_leaves_no_send_in_doubt(deliver, sandbox) -> None:
    ti = deliver()
    sandbox.plan_faults({"kind": "error", "method": "POST", "path": "*/send", "status": 502})
    with dying_after(Operation.SEND), pytest.raises(ProcessCrashed):
        ti.run()
    with dying_after(Operation.DISCARD), pytest.raises(ProcessCrashed):
        again(ti)
    assert [again(ti)["id"]] == billed(sandbox)


def test_a_shared_draft_whose_removal_is_not_known_is_made_anew(task) -> None:
    ti = task(CreateTransferOperator, **DELIVERY)
    first = ti.run()
    with dying_after(Operation.DISCARD), pytest.raises(ProcessCrashed):
        again(ti)
    assert again(ti) != first


def test_steps_whose_draft_was_discarded_are_delivered_after_a_clear(task, sandbox) -> None:
    """A task that runs at the end has removed the draft of a delivery that failed."""
    create = task(CreateTransferOperator, **DELIVERY)
    first = create.run()
    discard = task(DiscardTransferOperator, transfer_id=first)
    assert discard.run() is True
    create.upstream = {"discard": discard}  # the other tasks of the DAG
    assert again(create) not in ("", first)


def test_a_clear_that_withdraws_a_resend_compares_the_files(deliver, sandbox, files) -> None:
    ti = deliver()
    first = ti.run()["id"]
    with without_credit(sandbox):
        again(ti, resend=first)
    Path(files[0]).write_bytes(b"corrected")
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=f"delivered transfer {first}, with other input: a.csv has"):
            again(ti, resend=None)


def test_a_retry_after_a_try_that_left_nothing_compares_the_files(deliver, sandbox, files) -> None:
    """The first try after a clear has died before it was the package's turn."""
    ti = deliver(retries=1)
    first = ti.run()["id"]
    Path(files[0]).write_bytes(b"corrected")
    ti.clear()
    ti.try_number += 1
    with pytest.raises(AirflowFailException, match=f"delivered transfer {first}, with other input: a.csv has"):
        ti.run()


@pytest.mark.parametrize("change", ["another file", "another draft"])
def test_a_draft_that_somebody_changes_during_a_wait_is_not_sent(deliver, sandbox, files, hook, change) -> None:
    ti = deliver(retries=1, deferrable=False)
    sandbox.patch_account(outstanding_transfer_limit=0)
    sleep = ti.time.sleep

    def change_and_sleep(seconds: float) -> None:
        ti.time.sleep = sleep
        draft = ti.xcoms["transfer_id"]
        if change == "another file":
            hook.remove_file(draft, hook.list_files(draft)[0].id)
        else:
            sandbox.plan_faults(
                {"kind": "field_value", "method": "GET", "path": f"*/{draft}", "field": "subject", "json": '"Payroll"'}
            )
        sandbox.patch_account(outstanding_transfer_limit=9)
        sleep(seconds)

    ti.time.sleep = change_and_sleep
    first_and_second = ti.run()["id"]
    assert ti.try_number == 2
    assert billed(sandbox) == [first_and_second]
    assert names(hook, first_and_second) == ["a.csv", "b.csv"]


def attached(task: Make, create: FakeTaskInstance, name: str, files: list[str]) -> FakeTaskInstance:
    ti = task(AttachFilesOperator, transfer_id=create.result, files=files)
    ti.task_id = name
    ti.upstream = {"create": create}
    ti.run()
    return ti


@pytest.mark.parametrize("state", ["removed", "skipped", "upstream_failed", "running"])
def test_what_a_task_attached_that_does_not_run_any_more_is_not_sent(task, sandbox, files, state) -> None:
    """Airflow keeps the XComs of a task that is cleared, and then skipped, or removed as its list got shorter."""
    create = task(CreateTransferOperator, **DELIVERY)
    create.run()
    one, two = (attached(task, create, name, [file]) for name, file in zip(("one", "two"), files, strict=True))
    send = task(SendTransferOperator, transfer_id=create.result)
    send.upstream = {"create": create, "one": one, "two": two}
    two.final_state = state
    with pytest.raises(DraftChanged, match=f"Task two .* is {state} now"):
        send.run()
    sandbox.assert_nothing_sent()
    two.final_state = "success"
    assert send.run()["id"] == create.result


def test_a_new_draft_is_not_sent_without_the_files_of_a_task_that_was_not_cleared(task, sandbox, files) -> None:
    create = task(CreateTransferOperator, **DELIVERY)
    create.run()
    one, two = (attached(task, create, name, [file]) for name, file in zip(("one", "two"), files, strict=True))
    again(create)
    one = attached(task, create, "one", files[:1])
    send = task(SendTransferOperator, transfer_id=create.result)
    send.upstream = {"create": create, "one": one, "two": two}
    with pytest.raises(DraftChanged, match="Task two has attached files to draft"):
        send.run()
    sandbox.assert_nothing_sent()


@pytest.mark.parametrize("state", ["skipped", "removed"])
def test_a_new_draft_is_sent_without_the_files_of_a_task_that_is_skipped_now(task, sandbox, files, state) -> None:
    """It was cleared with the others, and takes no part in the new draft; Airflow keeps its old XCom."""
    create = task(CreateTransferOperator, **DELIVERY)
    create.run()
    one, two = (attached(task, create, name, [file]) for name, file in zip(("one", "two"), files, strict=True))
    again(create)
    one = attached(task, create, "one", files[:1])
    two.final_state = state
    send = task(SendTransferOperator, transfer_id=create.result)
    send.upstream = {"create": create, "one": one, "two": two}
    assert [file["name"] for file in send.run()["files"]] == ["a.csv"]


def test_a_resend_of_steps_whose_memory_is_lost_is_sent(task, sandbox, files) -> None:
    def deliver(create: FakeTaskInstance) -> str:
        draft = create.result
        attach = task(AttachFilesOperator, transfer_id=draft, files=files)
        attach.run()
        send = task(SendTransferOperator, transfer_id=draft)
        send.upstream = {"create": create, "attach": attach}
        return send.run()["id"]

    create = task(CreateTransferOperator, **DELIVERY)
    create.run()
    first = deliver(create)
    create.store.values.clear()
    again(create, resend=first)
    second = deliver(create)
    assert (again(create), billed(sandbox)) == (second, [first, second])


@pytest.mark.parametrize("status", [401, 403, 404, 409])
def test_a_gateways_refusal_is_not_a_response_of_the_service(task, sandbox, files, status) -> None:
    create = task(CreateTransferOperator, **DELIVERY)
    first = create.run()
    sandbox.plan_faults(*[{"kind": "error", "method": "GET", "path": "*", "status": status, "code": ""}] * 8)

    with pytest.raises(MalformedResponse, match="without the service's error object"):
        again(create)

    assert sandbox.transfer(first)["status"] == "draft", "nothing was concluded from it"


# Files.


def test_data_that_was_corrected_after_the_send_is_not_passed_over(deliver, sandbox, files) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    Path(files[0]).write_bytes(b"\1" * 1000)

    with pytest.raises(
        AirflowFailException, match=f"already delivered transfer {sent}, with .*a.csv has other content"
    ):
        again(ti)

    assert billed(sandbox) == [sent]


def test_the_same_bytes_under_a_new_time_of_change_are_the_same_input(deliver, sandbox, files) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    os.utime(files[0], (1, 1))
    assert again(ti)["id"] == sent
    content = Path(files[1]).read_bytes()
    Path(files[1]).unlink()
    Path(files[1]).write_bytes(content)
    assert again(ti)["id"] == sent


def test_the_same_files_by_other_paths_are_the_same_input(deliver, sandbox, files) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    assert again(ti, files=str(Path(files[0]).parent / "*.csv"))["id"] == sent


def test_a_file_that_a_pattern_finds_only_after_the_send_is_not_passed_over(deliver, sandbox, files) -> None:
    ti = deliver(files=str(Path(files[0]).parent / "*.csv"))
    sent = ti.run()["id"]
    Path(files[0]).with_name("c.csv").write_bytes(b"more")

    with pytest.raises(AirflowFailException, match="c.csv was not among them"):
        again(ti)
    assert billed(sandbox) == [sent]


@pytest.mark.parametrize("asked", ["in the same way", "in another way"])
def test_files_that_are_gone_after_the_send(deliver, sandbox, files, asked) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    for file in files:
        Path(file).unlink()

    if asked == "in the same way":
        assert again(ti)["id"] == sent, "what was sent is sent"
    else:
        with pytest.raises(AirflowFailException, match="with other input: other paths or patterns"):
            again(ti, files="/no/such/file")
    assert billed(sandbox) == [sent]


@pytest.mark.parametrize("archive", [None, "all.zip"])
@pytest.mark.parametrize("position", [0, 1])
def test_a_file_that_is_gone_hides_no_other_that_has_changed(deliver, sandbox, files, archive, position) -> None:
    ti = deliver(files=[files[0], files[1]], archive=archive)
    sent = ti.run()["id"]
    Path(files[position]).unlink()
    if archive is None:
        assert again(ti)["id"] == sent, "the other is what was sent"
    Path(files[1 - position]).write_bytes(b"corrected")

    with pytest.raises(AirflowFailException, match="with other input"):
        again(ti)
    assert billed(sandbox) == [sent]


def test_an_automatic_retry_after_the_send_requests_nothing_new(deliver, sandbox, files) -> None:
    ti = deliver(retries=1)
    sent = ti.run()["id"]
    Path(files[0]).write_bytes(b"tomorrow's")
    ti.try_number += 1

    assert ti.run_once()["id"] == sent


@pytest.fixture
def half_filled(sandbox: Sandbox) -> None:
    """No upload is known to have failed: each may still land."""
    sandbox.plan_faults(*[{"kind": "error", "method": "POST", "path": "*/files", "status": 503}] * 8)


def test_an_upload_of_a_file_that_is_not_wanted_any_more_is_never_sent(deliver, files, hook, half_filled) -> None:
    ti = deliver()
    with pytest.raises(CallError):
        ti.run()
    first = ti.xcoms["transfer_id"]
    result = again(ti, files=files[1:])
    assert result["id"] != first
    assert names(hook, result["id"]) == ["b.csv"]


def test_a_draft_that_holds_a_file_that_is_dropped_is_not_continued(deliver, sandbox, files, hook) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)
    ti = deliver(keep_draft=True)
    with pytest.raises(AirflowFailException, match="no_credit"):
        ti.run()
    sandbox.patch_account(credits=1)
    first = ti.xcoms["transfer_id"]

    sent = again(ti, files=files[1:])["id"]
    assert sent != first
    assert names(hook, sent) == ["b.csv"]


@pytest.mark.parametrize(
    "kind", [set, iter, lambda files: (file for file in files)], ids=["set", "iterator", "generator"]
)
def test_files_come_in_any_iterable(deliver, sandbox, files, kind) -> None:
    ti = deliver()
    ti.run()
    assert again(ti, files=kind(files))["id"]
    assert len(billed(sandbox)) == 1


# Clears.


def test_a_resend_is_sent_where_a_clear_leaves_max_tries_as_it_was(deliver, sandbox) -> None:
    """Retries were lowered by one, and the task cleared: its ``max_tries`` comes to the same."""
    ti = deliver(retries=1)
    first = ti.run()["id"]
    ti.retries = 0
    before = ti.max_tries

    second = again(ti, resend=first)["id"]

    assert ti.max_tries == before
    assert billed(sandbox) == [first, second]


def test_a_clear_of_another_task_does_not_resend(deliver, sandbox) -> None:
    ti = deliver(retries=1)
    first = ti.run()["id"]
    with pytest.raises(Exception, match="Timed out"):
        again(ti, resend=first, wait=True, timeout=0)
    ti.try_number, ti.clear_number = ti.try_number + 1, 2  # an automatic retry, and another task of the run was cleared

    with pytest.raises(Exception, match="Timed out"):
        ti.run_once()
    assert len(billed(sandbox)) == 2


# Creates whose end is not known.


@pytest.mark.parametrize("retries", [0, 3])
def test_creates_in_doubt_leave_two_drafts_in_each_try(deliver, sandbox, retries) -> None:
    fault = {"kind": "error", "method": "POST", "path": "/v1/transfers", "status": 502, "effect": "after"}
    sandbox.plan_faults(*[fault] * 100)
    ti = deliver(retries=retries)

    with pytest.raises(CallError):
        ti.run()

    creates = [call for call in sandbox.requests() if (call["method"], call["path"]) == ("POST", "/v1/transfers")]
    assert len(creates) == 2 * (1 + retries), "nobody knows their ids, so nobody can send them"
    sandbox.clear_faults()
    sent = again(ti)["id"]
    assert billed(sandbox) == [sent]


def test_an_outage_leaves_no_more_than_one_draft(deliver, sandbox) -> None:
    fault = {"kind": "error", "method": "*", "path": "*", "status": 503}
    sandbox.plan_faults({**fault, "effect": "after"}, *[fault] * 6)

    sent = deliver().run()["id"]
    assert billed(sandbox) == [sent]
    creates = [call for call in sandbox.requests() if (call["method"], call["path"]) == ("POST", "/v1/transfers")]
    assert len(creates) == 2


# Templates that give nothing.


def rendered(native: bool = False, **arguments: Any) -> DeliverFilesOperator:
    with DAG("templates", schedule=None, render_template_as_native_obj=native):
        operator = DeliverFilesOperator(task_id="task", **{"files": "a.csv", **DELIVERY, **arguments})
    operator.render_template_fields({"nothing": None, "word": "None"})
    return operator


@pytest.mark.parametrize("native", [True, False])
def test_nothing_is_not_sent_as_a_word(native) -> None:
    asked = rendered(native, message="{{ nothing }}").new_transfer()
    assert asked.message is None
    with pytest.raises(InvalidDelivery, match="subject must not be empty"):
        rendered(native, subject="{{ nothing }}").new_transfer()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("missing", ["security", "security_question", "security_answer"])
def test_security_that_a_template_does_not_give_is_refused(native, missing) -> None:
    asked = {"security": "question", "security_question": "Which?", "security_answer": "Blue"}
    with pytest.raises(InvalidDelivery, match="security"):
        rendered(native, **asked | {missing: "{{ nothing }}"}).new_transfer()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("template", ["{{ nothing }}", "{{ '' }}"])
def test_a_name_that_a_template_does_not_give_is_refused(native, template) -> None:
    """The file's own name may be an internal one."""
    operator = rendered(native, files={"path": "customer_4711_draft.csv", "name": template})
    with pytest.raises(InvalidDelivery, match="the name of a file must not be empty"):
        operator.file_specs()


def test_the_word_itself_may_be_sent() -> None:
    asked = rendered(subject="None", message="None").new_transfer()
    assert (asked.subject, asked.message) == ("None", "None")


# Answers that are not definite, and memories of something else.


def test_an_item_that_moves_to_an_index_that_came_to_nothing_is_not_sent_again(deliver, sandbox, files) -> None:
    first, second = (mapped(deliver(subject=subject), index, clear_number=0) for index, subject in enumerate("AB"))
    Path(files[0]).rename(Path(files[0]).with_name("later"))
    with pytest.raises(SourceError):
        first.run()
    Path(files[0]).with_name("later").rename(files[0])
    sent = second.run()["id"]

    with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
        again(first, subject="B")

    assert billed(sandbox) == [sent]


def test_a_draft_whose_send_is_in_doubt_is_not_changed(deliver, sandbox, files, hook) -> None:
    refused = {"kind": "reset", "method": "POST", "path": "*/send", "effect": "before"}
    sandbox.plan_faults(*[refused] * 8)
    ti = deliver()
    with pytest.raises(CallError):
        ti.run()
    first = ti.xcoms["transfer_id"]
    Path(files[0]).write_bytes(b"corrected")

    result = again(ti)

    assert result["id"] != first
    assert billed(sandbox) == [result["id"]]
    assert {file.name: file.size for file in hook.list_files(result["id"])} == {"a.csv": 9, "b.csv": 1000}
    removed = [call["path"] for call in sandbox.requests() if call["method"] == "DELETE"]
    assert removed == [f"/v1/transfers/{first}"], "had the send landed, it would have met the draft as it was"


@pytest.mark.parametrize(
    ("field", "value"), [("files", "null"), ("id", '"other"')], ids=["without files", "of another transfer"]
)
def test_an_incomplete_read_is_repeated(deliver, sandbox, field, value) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)
    ti = deliver(retries=1, keep_draft=True)
    with pytest.raises(AirflowFailException, match="no_credit"):
        ti.run()
    sandbox.patch_account(credits=1)
    first = ti.xcoms["transfer_id"]
    sandbox.plan_faults({"kind": "field_value", "method": "GET", "path": "*", "field": field, "json": value})

    assert again(ti)["id"] == first


def test_a_send_whose_response_is_a_draft_is_reconciled(deliver, sandbox) -> None:
    answer = {"kind": "error", "method": "POST", "path": "*/send", "status": 502}
    draft = {"kind": "field_value", "method": "POST", "path": "*/send", "field": "status", "json": '"draft"'}
    sandbox.plan_faults(draft, answer)
    result = deliver().run()
    assert result["status"] == "pending"
    assert billed(sandbox) == [result["id"]]


def test_a_wrong_transfer_is_not_a_success_after_a_clear(deliver, sandbox, hook) -> None:
    ti = deliver()
    sent = ti.run()["id"]
    ti.store.values = {key: value.replace("b.csv", "c.csv") for key, value in ti.store.values.items()}

    with pytest.raises(AirflowFailException, match=f"{sent} was sent, but the service says that it holds"):
        again(ti)


@pytest.mark.parametrize("wrong", [None, "", "None", ".", 7, {"subject": "Report"}])
def test_a_send_of_no_id_is_refused_and_forgotten(task, sandbox, files, wrong) -> None:
    draft = task(CreateTransferOperator, **DELIVERY).run()
    task(AttachFilesOperator, transfer_id=draft, files=files).run()
    send = task(SendTransferOperator, transfer_id=wrong, _airflow_from_mapped=True)
    with pytest.raises(AirflowFailException, match=r"must be the id of a transfer|not an id of the service"):
        send.run()

    assert again(send, transfer_id=draft)["id"] == draft


@pytest.mark.parametrize("wrong", [{"timeout": "soon"}, {"poke_interval": -1}, {"on_expired": "{{ 1 }}"}], ids=str)
def test_a_wait_that_cannot_be_is_refused_before_the_send(deliver, sandbox, wrong) -> None:
    with pytest.raises((AirflowFailException, ValueError)):
        deliver(wait=True, **wrong).run()
    assert sandbox.requests() == []


def died_after_its_send(task: Make, files: list[str]) -> FakeTaskInstance:
    ti = task(DeliverFilesOperator, files=files, **DELIVERY)
    with dying_after(Operation.SEND), pytest.raises(ProcessCrashed):
        ti.run()
    return ti


def make_draft(task: Make, files: list[str]) -> str:
    transfer_id = str(task(CreateTransferOperator, **DELIVERY).run())
    task(AttachFilesOperator, transfer_id=transfer_id, files=files).run()
    return transfer_id


@pytest.mark.parametrize("wrong", ["input", "store"])
def test_an_error_at_the_beginning_of_a_try_names_what_was_sent(task, sandbox, files, wrong, monkeypatch) -> None:
    """The first try sent, and died before it knew."""
    ti = died_after_its_send(task, files)
    changes: dict[str, Any] = {}
    if wrong == "store":
        monkeypatch.setattr(ti.store, "set", lambda *_, **__: None)
    else:
        changes = {"recipients": ["ann@"]}
    with pytest.raises(Exception, match=sandbox.sent()[0]):
        again(ti, **changes)


def refuse(*_: Any, **__: Any) -> Any:
    """As the API server does that fails."""
    raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))


@pytest.mark.parametrize("what", ["get_ti_count", "store", "xcom_push", "connection", "slot_timeout"])
def test_an_error_of_another_origin_names_what_was_sent(
    task, sandbox, files, what, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's API server fails, the connection is broken, an argument is wrong."""
    ti = died_after_its_send(task, files)
    changes = {"slot_timeout": "soon"} if what == "slot_timeout" else {}
    if what == "store":
        monkeypatch.setattr(ti.store, "set", refuse)
    elif what == "connection":
        monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", '{"conn_type": "outbound_transfer"}')
    elif not changes:
        monkeypatch.setattr(ti, what, refuse)
    with pytest.raises(Exception, match=sandbox.sent()[0]):
        again(ti, **changes)


def test_a_wait_that_cannot_begin_names_what_was_sent(deliver, sandbox, monkeypatch) -> None:
    ti = deliver(wait=True)
    store = ti.store.set
    monkeypatch.setattr(
        ti.store, "set", lambda key, *value, **kept: (refuse if "deadline" in key else store)(key, *value, **kept)
    )
    with pytest.raises(Exception, match="API_SERVER_ERROR") as failed:
        ti.run()
    assert f"Transfer {sandbox.sent()[0]} was sent" in str(failed.value)


def test_a_wait_whose_triggers_all_fail_names_what_was_sent(deliver, sandbox) -> None:
    ti = deliver(wait=True, deferrable=True)
    ti.try_number = 1
    with pytest.raises(TaskDeferred):
        ti._operator().execute(ti.context())

    def fail() -> None:
        ti._operator().resume_execution("__fail__", {"error": "Trigger failure"}, ti.context())

    for _ in range(3):
        with pytest.raises(TaskDeferred):
            fail()
    with pytest.raises(Exception, match=sandbox.sent()[0]):
        fail()


def test_an_error_keeps_its_class_which_may_decide_about_a_retry(deliver, sandbox, monkeypatch) -> None:
    ti = deliver()
    with dying_after(Operation.SEND), pytest.raises(ProcessCrashed):
        ti.run()

    def deny(**_: Any) -> Any:
        raise PermissionError("denied")

    monkeypatch.setattr(ti, "get_ti_count", deny)
    with pytest.raises(
        PermissionError, match=rf"^denied\. Transfer {sandbox.sent()[0]} may nevertheless have been sent"
    ):
        again(ti)


def time_out(*_: Any, **__: Any) -> Any:
    raise AirflowTaskTimeout("Timeout, PID: 1")


def test_an_execution_timeout_in_a_wait_names_what_was_sent(deliver, sandbox, monkeypatch) -> None:
    monkeypatch.setattr(DeliverFilesOperator, "_wait_until_finished", time_out)
    with pytest.raises(AirflowTaskTimeout, match=r"Transfer tr_\w+ was sent. Timeout, PID: 1"):
        deliver(wait=True).run()


NOT_MADE = ["the try was given up", "Airflow does not say", "it took too long", "the service is not reached", "no slot"]


@pytest.mark.parametrize("what", NOT_MADE)
def test_a_send_that_was_not_made_is_not_in_doubt(task, sandbox, files, what, monkeypatch) -> None:
    """The teardown discards the draft, and the run is cleared."""
    first = make_draft(task, files)
    ti = task(SendTransferOperator, transfer_id=first, deferrable=True, slot_timeout=300)
    with monkeypatch.context() as patched:
        if what == "the try was given up":
            patched.setattr(ti, "state", "failed")
        elif what == "Airflow does not say":
            patched.setattr(ti, "get_task_states", refuse)
        elif what == "it took too long":
            patched.setattr(ti, "get_task_states", time_out)
        elif what == "no slot":
            sandbox.patch_account(outstanding_transfer_limit=0)
        else:
            patched.setattr(client, "send", _not_connected(client.send))
        with pytest.raises(BaseException, match=r"nothing is sent|API_SERVER_ERROR|Timeout|refused|limit") as failed:
            ti.run()
    sandbox.patch_account(outstanding_transfer_limit=100)
    assert first not in str(failed.value)
    assert task(DiscardTransferOperator, transfer_id=first).run()

    second = make_draft(task, files)
    assert again(ti, transfer_id=second)["id"] == second
    assert billed(sandbox) == [second]


@pytest.mark.parametrize("before", ["", "a draft from other input", "a deferral", "a deferral, and a file vanishes"])
def test_an_execution_timeout_at_the_send_names_the_draft_that_was_sent(
    deliver, sandbox, files, before, monkeypatch
) -> None:
    ti = deliver(deferrable=True, files=[f"{Path(files[0]).parent}/*"])
    subject = "Report"
    if before == "a draft from other input":
        with without_credit(sandbox):
            ti.run()
        subject = "Corrected"
    elif before:
        sandbox.plan_faults({**RATE_LIMITED, "path": "*/send" if "vanishes" in before else "*/files"})
        fire = ti._fire
        ti._fire = lambda trigger: (Path(files[0]).unlink() if "vanishes" in before else None, fire(trigger))[1]
    monkeypatch.setattr(client, "send", _timing_out_after_the_send(client.send))
    with pytest.raises(AirflowTaskTimeout) as failed:
        again(ti, subject=subject)

    (sent,) = billed(sandbox)
    assert sent in str(failed.value)


RATE_LIMITED = {
    "kind": "error",
    "method": "POST",
    "status": 429,
    "code": "rate_limited",
    "headers": {"Retry-After": "30"},
}


def _timing_out_after_the_send(send: Callable[..., Any]) -> Callable[..., Any]:
    def send_and_time_out(*arguments: Any) -> Any:
        received = send(*arguments)
        return time_out() if arguments[2].operation is Operation.SEND and received.status == 200 else received

    return send_and_time_out


def test_a_draft_that_was_not_sent_is_not_called_sent(deliver, sandbox, hook) -> None:
    """Before its automatic retry, another task of the run is cleared, and the draft is removed."""
    ti = deliver()
    first = ti.run()["id"]
    ti.retries = 1

    def change() -> None:
        ti.clear_number += 1
        hook.discard_transfer(ti.xcoms["transfer_id"])
        sandbox.patch_account(outstanding_transfer_limit=100)

    ti.before_retry = change
    sandbox.patch_account(outstanding_transfer_limit=0)
    assert [first, again(ti, resend=first)["id"]] == billed(sandbox)


def _not_connected(send: Callable[..., Any]) -> Callable[..., Any]:
    def send_or_not(*arguments: Any) -> Any:
        if arguments[2].operation is Operation.SEND:
            raise NotConnected("send: connection refused")
        return send(*arguments)

    return send_or_not


def test_a_send_that_answers_with_two_files_of_one_name_is_not_what_was_meant(deliver, sandbox, monkeypatch) -> None:
    send = client.send

    def bent(*arguments: Any) -> Any:
        response = send(*arguments)
        if arguments[2].operation is not Operation.SEND:
            return response
        body = json.loads(response.body)
        body["files"] = [{**body["files"][0], "id": "fi_other", "size": 999}, *body["files"]]
        return replace(response, body=json.dumps(body).encode())

    monkeypatch.setattr(client, "send", bent)
    with pytest.raises(AirflowFailException, match="the service says that it holds") as failed:
        deliver().run()
    assert sandbox.sent()[0] in str(failed.value)


def test_a_wait_that_fails_says_that_the_transfer_was_sent(deliver, sandbox) -> None:
    with pytest.raises(AirflowSensorTimeout, match=r"Transfer tr_\w+ was sent. Timed out waiting"):
        deliver(wait=True, timeout=0).run()


def test_a_wait_does_not_finish_with_another_transfer(deliver, sandbox) -> None:
    """The connection leads to an account whose ids are the same."""
    ti = deliver(wait=True, deferrable=True)
    fire = ti._fire

    def fire_of_another(trigger: Any) -> Any:
        sandbox.pickup(trigger.transfer_id, "ann@example.com")
        event = fire(trigger)
        return {**event, "transfer": {**event["transfer"], "subject": "Theirs"}}

    ti._fire = fire_of_another
    with pytest.raises(AirflowFailException, match=r"was sent. Under its id .* another transfer now"):
        ti.run()


def test_the_state_of_an_older_try_is_not_trusted(deliver, sandbox) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)
    ti = deliver(message="first")
    with pytest.raises(AirflowFailException, match="no_credit"):
        ti.run()
    sandbox.patch_account(credits=5)
    sent = again(ti, message="second")["id"]
    del ti.store.values["outbound_transfer_delivery_try_2"]

    for _ in range(2):
        with pytest.raises(AirflowFailException, match=f"{sent}.*may be this very delivery"):
            again(ti, message="first")
    assert billed(sandbox) == [sent]


# An attach whose record is lost, a discard and a wait that meet another account.


@pytest.fixture
def attach(task, files) -> FakeTaskInstance:
    """A task that attaches the first file to a draft, and has done so."""
    ti = task(AttachFilesOperator, transfer_id=task(CreateTransferOperator, **DELIVERY).run(), files=files[:1])
    ti.run()
    return ti


def test_a_file_of_an_attach_whose_record_is_lost_is_not_sent(attach, files, task, sandbox) -> None:
    attach.store.values.clear()
    again(attach, files=files[1:])
    send = task(SendTransferOperator, transfer_id=attach.make().transfer_id)
    send.upstream = {"attach": attach}
    with pytest.raises(DraftChanged, match=r"holds \['a\.csv', 'b\.csv'\], which are not the files"):
        send.run()
    sandbox.assert_nothing_sent()


def test_a_try_that_attaches_nothing_leaves_a_record(attach, files, task) -> None:
    """Files of other tasks are refused only if a record is missing."""
    other = task(AttachFilesOperator, transfer_id=attach.make().transfer_id, files=["/missing.csv"], retries=0)
    with pytest.raises((AirflowFailException, SourceError)):
        other.run()
    assert [file["name"] for file in again(other, files=files[1:])] == ["b.csv"]


def test_a_version_of_a_file_whose_record_is_lost_is_not_sent(task, sandbox, files, tmp_path) -> None:
    other = tmp_path / "other" / "a.csv"
    other.parent.mkdir()
    other.write_bytes(b"\7" * 1000)
    draft = task(CreateTransferOperator, **DELIVERY).run()
    ti = task(AttachFilesOperator, transfer_id=draft, files=files[:1])
    ti.run()
    again(ti, files=[str(other)])
    del ti.store.values["outbound_transfer_delivery_try_2"]

    (stored,) = again(ti, files=files[:1])
    assert sandbox.stored_file(draft, stored["id"])["sha256"] == hashlib.sha256(bytes(1000)).hexdigest()


@pytest.mark.parametrize("operator", [CreateTransferOperator, DeliverFilesOperator])
def test_a_draft_of_another_account_is_not_discarded_here(task, sandbox, files, elsewhere, operator) -> None:
    sandbox.patch_account(billing="per_transfer", credits=0)
    ti = task(
        operator, **DELIVERY, **({"files": files, "keep_draft": True} if operator is DeliverFilesOperator else {})
    )
    try:
        draft = ti.run()
    except AirflowFailException:
        draft = ti.xcoms["transfer_id"]
    discard = task(DiscardTransferOperator, transfer_id=draft)
    discard.upstream = {"create": ti}
    other = elsewhere()

    with pytest.raises(AirflowFailException, match="led to .* when the run began with transfer"):
        discard.run()

    assert other.requests() == []
    assert sandbox.transfer(draft)["status"] == "draft"


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_wait_whose_record_is_lost_names_what_it_waits_for_and_no_empty_id(deliver, sandbox, is_shown) -> None:
    ti = deliver(wait=True, deferrable=True, timeout=0)
    fire = ti._fire

    def lose(trigger: Any) -> Any:
        ti.store.values.clear()
        return fire(trigger) if is_shown else {"status": "timeout", "transfer": None, "message": ""}

    ti._fire = lose
    with pytest.raises(AirflowSensorTimeout, match=r"^Transfer tr_\w+ was sent\. Timed" if is_shown else r"^Timed out"):
        ti.run()


def test_a_wait_whose_record_is_lost_believes_none_of_another_transfer(deliver, sandbox) -> None:
    ti = deliver(wait=True, deferrable=True)
    with without_credit(sandbox):
        ti.run()
    fire = ti._fire

    def lose(trigger: Any) -> Any:
        del ti.store.values["outbound_transfer_delivery_try_2"]
        sandbox.pickup(trigger.transfer_id, "ann@example.com")
        return fire(trigger)

    ti._fire = lose
    assert again(ti, subject="Corrected")["status"] == "complete"


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("in_triggerer", [True, False])
def test_the_triggerer_does_not_finish_with_another_transfer(deliver, sandbox, in_triggerer, is_known) -> None:
    """Nor does the worker, if the task's state is lost."""
    ti = deliver(wait=True, deferrable=True, poke_interval=1, finish_in_triggerer=True)

    def fire_of_another(trigger: Any) -> Any:
        sandbox.pickup(trigger.transfer_id, "ann@example.com")
        kind, kwargs = trigger.serialize()
        another = type(trigger)(**{**kwargs, "identity": "another"})
        assert kind.endswith("TransferTrigger")
        assert kwargs["identity"]
        event = asyncio.run(asyncio.wait_for(shared_event(another) if in_triggerer else anext(another.run()), 60))
        assert type(event).__name__ == "TriggerEvent"
        if not is_known:
            ti.store.values.clear()
        return event.payload

    ti._fire = fire_of_another
    with pytest.raises(AirflowFailException, match="Under its id .* another transfer now"):
        ti.run()


async def shared_event(trigger: Any) -> Any:
    """The trigger's event on the shared poll, as the triggerer runs it."""
    producer = type(trigger).create_shared_stream_producer(trigger.serialize()[1])

    async def stream() -> Any:
        async for update, _ in producer.open_stream():
            yield update

    return await anext(trigger.filter_shared_stream(stream()))
