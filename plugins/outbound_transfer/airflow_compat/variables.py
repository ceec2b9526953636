"""State of a task instance in Airflow Variables, for versions without a task state store.

Each try has a Variable of its own, so that a try that Airflow has given up cannot overwrite a later one's. Variables
cannot be compared and set, so after each write the API server is asked whether this try still runs.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Final

from outbound_transfer.airflow_compat.task_attempt import StaleAttempt, TaskAttempt
from outbound_transfer.protocol.errors import OutboundTransferError

#: Start of the Variables' keys. Without a word for which Airflow would mask the value in logs.
KEY_PREFIX: Final = "outbound_transfer_state__"

_DESCRIPTION: Final = "A delivery of {dag_id}.{task_id}, run {run_id}: deleting it forgets what was sent."

#: How many numbers ahead later tries are looked for: some of those before them may have stored nothing.
_MAX_GAP: Final = 10

#: Seconds after which a Variable that is not there is requested once more.
_REPEAT_SECONDS: Final = 0.5

#: Sends a message to the task's supervisor and returns the response.
Send = Callable[[Any], Any]


class VariablesUnavailable(OutboundTransferError):
    """Airflow does not store Variables as asked, or does not say. A retry may succeed."""


class VariableState:
    """The state of one task instance, as one of its tries reads and writes it.

    :param ti_id: the id of the task instance's try in Airflow.
    :param send: sends a message to the task's supervisor. Not Airflow's ``Variable``: it takes an API server that fails
        for one that has no such Variable, swallows the error of a write, and asks every secrets backend first.
    """

    def __init__(self, attempt: TaskAttempt, ti_id: Any, send: Send) -> None:
        self._attempt, self._ti_id, self._send = attempt, ti_id, send
        path = json.dumps([attempt.dag_id, attempt.run_id, attempt.task_id, attempt.map_index])
        self._is_checked = False
        self._prefix = f"{KEY_PREFIX}{hashlib.sha256(path.encode()).hexdigest()[:32]}__"

    def get(self, key: str, default: Any = None) -> Any:
        """Return what the newest try stored under ``key``.

        :raises StaleAttempt: a later try has begun.
        :raises VariablesUnavailable: it is not known.
        """
        self._check_newest_once()
        for number in range(self._attempt.try_number, 0, -1):
            values = self._read(number)
            if key in values:
                return values[key]
        return default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:  # noqa: ARG002  # kept until it is cleaned
        """Store a value that JSON can represent.

        :raises StaleAttempt: a later try has begun.
        :raises VariablesUnavailable: the value was not stored.
        """
        from airflow.sdk.execution_time.comms import PutVariable

        self._check_newest_once()
        values = self._read_own() | {key: value}
        now = datetime.now(timezone.utc).isoformat()
        content = json.dumps({"run_started_at": self._attempt.run_started_at, "values": values, "written_at": now})
        description = _DESCRIPTION.format(**self._attempt._asdict())
        self._request(PutVariable(key=self._key(self._attempt.try_number), value=content, description=description))
        if self._read(self._attempt.try_number) != json.loads(json.dumps(values)):
            raise VariablesUnavailable("Airflow does not return the Variable that was just stored")
        self._check_still_running()

    def _check_newest_once(self) -> None:
        if self._is_checked:
            return
        number = self._attempt.try_number
        if later := [each for each in range(number + 1, number + 1 + _MAX_GAP) if self._read(each)]:
            raise self._attempt.superseded(later[-1])
        self._is_checked = True

    def _read_own(self) -> dict[str, Any]:
        """Return what this try has stored, which the next write must not lose."""
        if found := self._read(self._attempt.try_number):
            return found
        # An API server whose database fails for a moment responds that there is no such Variable.
        time.sleep(_REPEAT_SECONDS)
        return self._read(self._attempt.try_number)

    def _read(self, try_number: int) -> dict[str, Any]:
        """Return what a try of this run stored; nothing of a run that was deleted and made anew under its id."""
        started_at, values = self._fetch(try_number)
        # The first try of a run overwrites what it finds, and so says when the run has begun.
        if not values or not self._attempt.remembers(started_at) or started_at < self._fetch(1)[0]:
            return {}
        return values

    def _fetch(self, try_number: int) -> tuple[str, dict[str, Any]]:
        """Return when the run was started in which a try stored something, and what; "" and nothing if it did not.

        :raises VariablesUnavailable: the Variable is not what was stored.
        """
        from airflow.sdk.execution_time.comms import GetVariable

        found = self._request(GetVariable(key=self._key(try_number)), absent="VARIABLE_NOT_FOUND")
        if found is None or not found.value:
            return "", {}
        try:
            content = json.loads(found.value)
            return str(content["run_started_at"]), dict(content["values"])
        except (ValueError, TypeError, KeyError) as error:
            raise VariablesUnavailable(f"The Variable {self._key(try_number)} is invalid: {error}") from None

    def _check_still_running(self) -> None:
        """:raises StaleAttempt: Airflow has given this try up."""
        from airflow.sdk.execution_time.comms import ValidateInletsAndOutlets

        # The one question that older API servers answer only about a try that runs, and that changes nothing.
        try:
            self._request(ValidateInletsAndOutlets(ti_id=self._ti_id))
        except VariablesUnavailable as error:
            raise StaleAttempt(
                f"Airflow does not confirm that this try still runs, so it sends nothing: {error}"
            ) from None

    def _request(self, message: Any, *, absent: str = "") -> Any:
        """Return the response, or None if the error is ``absent``.

        :raises VariablesUnavailable: another error.
        """
        from airflow.sdk.exceptions import AirflowRuntimeError

        try:
            response = self._send(message)
        except AirflowRuntimeError as error:
            response = error.error
        kind = getattr(response, "error", None)
        if kind is None:
            return response
        name = getattr(kind, "name", str(kind))
        if absent and name == absent:
            return None
        raise VariablesUnavailable(f"Airflow's API server answered {name} to {type(message).__name__}")

    def _key(self, try_number: int) -> str:
        return f"{self._prefix}{try_number}"


def clean_variables(older_than: datetime) -> int:
    """Delete the Variables of tasks whose tries all wrote before ``older_than``; return the number of tasks.

    A Variable that does not say when it was written keeps those of its task. Call it in a process that may use
    Airflow's database.
    """
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    by_task: defaultdict[str, list[Variable]] = defaultdict(list)
    with create_session() as session:
        for variable in session.scalars(select(Variable).where(Variable.key.startswith(KEY_PREFIX, autoescape=True))):
            by_task[variable.key.rpartition("__")[0]].append(variable)
        # A later try reads what only an earlier one has written, so they are deleted together.
        old = [tries for tries in by_task.values() if all(_is_older(each.val, older_than) for each in tries)]
        for variable in (variable for tries in old for variable in tries):
            session.delete(variable)
    return len(old)


def _is_older(content: str | None, than: datetime) -> bool:
    with suppress(ValueError, TypeError, KeyError):
        return datetime.fromisoformat(json.loads(content or "")["written_at"]) < than
    return False
