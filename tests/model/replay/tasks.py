"""The real tasks of a replay: one task instance for each of the model, and what its processes see of Airflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from model.world import PEOPLE
from outbound_transfer.operators.redelivery import RedeliverFilesOperator
from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    SendTransferOperator,
)
from support.tasks import FakeTaskInstance, InMemoryStateStore

#: More than any schedule uses: whether a try is the last is not what the model is about.
RETRIES: Final = 20

#: Airflow's names of the states of the model.
STATES: Final = {"refused": "failed", "new": "None", "absent": "None"}

#: The content of the file, by item: "x" is X after the file has changed, and W's has the size of X's.
CONTENTS: Final = {"X": b"X", "Y": b"YY", "x": b"xxx", "V": b"VVVV", "W": b"W", "v1": b"one", "v2": b"two and more"}


@dataclass
class Instance:
    """A task instance, as Airflow has it.

    :ivar state: as the model names it.
    """

    task_id: str
    kind: str
    map_index: int = -1
    state: str = "new"
    try_number: int = 0
    max_tries: int = RETRIES
    result: Any = None
    error: BaseException | None = None
    xcoms: dict[str, Any] = field(default_factory=dict)
    store: InMemoryStateStore = field(default_factory=InMemoryStateStore)

    @property
    def state_name(self) -> str:
        return self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"

    def clear(self) -> None:
        self.max_tries = self.try_number + RETRIES
        self.state = "queued"

    def delete(self) -> None:
        """Let it be made anew, with nothing remembered."""
        self.try_number, self.max_tries, self.state, self.result = 0, RETRIES, "new", None
        self.store, self.xcoms = InMemoryStateStore(), {}


@dataclass
class ProcessTaskInstance(FakeTaskInstance):
    """What one process of a try sees: itself as it was when it began, and Airflow as it is.

    :ivar of_run: all task instances of the run.
    """

    instance: Any = None
    of_run: list[Instance] = field(default_factory=list)
    is_resumed: bool = False

    @property
    def _ti_context_from_server(self) -> SimpleNamespace:
        return SimpleNamespace(next_method="resume" if self.is_resumed else None, max_tries=self.max_tries)

    def get_task_states(
        self, *, dag_id: str, map_index: int | None, task_ids: list[str], run_ids: list[str]
    ) -> dict[str, dict[str, str]]:
        found = [each for each in self.of_run if each.task_id in task_ids]
        return {self.run_id: {each.state_name: STATES.get(each.state, each.state) for each in found}}

    def xcom_push(self, key: str, value: Any) -> None:
        self.instance.xcoms[key] = value


class Tasks:
    """Makes the operators of one schedule.

    :param name: of the schedule: it shares an account with others.
    :param first_id: of the transfer that is delivered again; "" if none is.
    """

    def __init__(self, name: str, first_id: str = "", *, is_deferrable: bool = False) -> None:
        self._name, self._first_id, self._is_deferrable = name, first_id, is_deferrable

    def subject(self, item: str) -> str:
        return f"for {PEOPLE[item]} of {self._name}"

    @staticmethod
    def recipients(item: str) -> list[str]:
        return [f"{PEOPLE[item]}@example.com"]

    @staticmethod
    def files(item: str) -> list[dict[str, Any]]:
        return [{"name": "report.csv", "content": CONTENTS[item]}]

    def delivery_key(self, key: str) -> str | None:
        return f"{key} of {self._name}" if key else None

    def new_transfer(self, item: str, *, is_shared: bool = False) -> dict[str, Any]:
        """Return what is delivered, with a secret; what creates a draft for other tasks knows nothing of its files."""
        files = PEOPLE[item] if is_shared else item
        return {
            "subject": self.subject(item),
            "recipients": self.recipients(item),
            "message": f"about {files}",
            "security": "question",
            "security_question": "Which one?",
            "security_answer": f"the answer {files}",
        }

    def operator(self, instance: Instance, item: str, key: str, *, draft_id: str) -> Any:
        common = {"task_id": instance.task_id, "retries": RETRIES, "deferrable": self._is_deferrable}
        if instance.kind == "attach":
            return AttachFilesOperator(**common, transfer_id=draft_id, files=self.files(item), max_parallel_uploads=1)
        if instance.kind == "send":
            return SendTransferOperator(**common, transfer_id=draft_id)
        new = self.new_transfer(item, is_shared=instance.kind == "create")
        if instance.kind == "create":
            return CreateTransferOperator(**common, **new)
        files = {"files": self.files(item), "max_parallel_uploads": 1}
        if self._first_id:
            del new["subject"], new["recipients"]
            return RedeliverFilesOperator(**common, **new, **files, transfer_id=self._first_id)
        return DeliverFilesOperator(**common, **new, **files, delivery_key=self.delivery_key(key))
