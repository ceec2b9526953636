"""What each keeper of a task's state promises: it outlives a try, and a try that was given up changes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable, PutVariable, ValidateInletsAndOutlets

from outbound_transfer.airflow_compat.task_attempt import StaleAttempt, TaskAttempt
from outbound_transfer.airflow_compat.variables import VariableState, VariablesUnavailable
from outbound_transfer.delivery.state_store import state_store
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.errors import SchemaTooNew, UnreliableTable
from outbound_transfer.warehouse.schema import STATE, ensure_schema
from outbound_transfer.warehouse.task_state import TaskState, clean_task_states
from outbound_transfer.warehouse.timestamps import utc_now
from support.mariadb import MARIADB_DRIVERS
from support.tasks import InMemoryStateStore
from support.warehouses import Hook

T0, T1, T2 = (f"2026-11-0{day}T00:00:00.000000+00:00" for day in (1, 2, 3))


class Supervisor:
    """Airflow's supervisor and API server, as far as they keep Variables: each try has an id of its own."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.running: Any = None
        self.fail_with: ErrorType | None = None
        self.loses_writes = False
        self.absent = 0

    def __call__(self, message: Any) -> Any:
        if self.fail_with is not None:
            raise AirflowRuntimeError(ErrorResponse(error=self.fail_with))
        if isinstance(message, PutVariable):
            assert "/" not in message.key
            assert len(message.key) <= 250
            if not self.loses_writes:
                self.variables[message.key] = message.value
            return None
        if isinstance(message, GetVariable):
            self.absent -= 1
            if self.absent >= 0 or message.key not in self.variables:
                return ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND)
            return type("VariableResult", (), {"value": self.variables[message.key], "key": message.key})()
        assert isinstance(message, ValidateInletsAndOutlets)
        if message.ti_id != self.running:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
        return None


class Keeper:
    """Opens the state for a try: ``keeper(task_attempt)``."""

    def __init__(self, open_state: Callable[[TaskAttempt], Any]) -> None:
        self.open_state = open_state

    def __call__(self, number: int = 1, *, run: str = T0, fresh: bool = True, **other: Any) -> Any:
        values = {"dag_id": "d" * 250, "run_id": "r/ü %s", "task_id": "t", "map_index": -1} | other
        return self.open_state(TaskAttempt(**values, try_number=number, run_started_at=run, is_fresh=fresh))


@pytest.fixture(params=["sqlite", "psycopg", "psycopg2", *MARIADB_DRIVERS, "invented_postgresql", "variables"])
def keeper(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Keeper:
    if request.param == "variables":
        supervisor = Supervisor()

        def open_state(task_attempt: TaskAttempt) -> VariableState:
            supervisor.running = new = ValidateInletsAndOutlets(ti_id=f"{task_attempt.try_number:032x}").ti_id
            return VariableState(task_attempt, new, supervisor)

        return Keeper(open_state)
    if request.param == "invented_postgresql":
        hook = Hook("invented_postgresql", hook_of("psycopg").get_conn)
    else:
        hook = hook_of(request.param)
    return Keeper(lambda task_attempt: TaskState(Warehouse(hook), task_attempt))


def test_what_was_stored_last_is_read_by_this_try_and_later_ones(keeper: Keeper) -> None:
    first = keeper(1)
    assert first.get("a") is None
    assert first.get("a", default=3) == 3
    first.set("a", {"name": "caf\udce9 \0 ü", "size": 2**60})
    first.set("b", [1])
    first.set("b", [2])
    assert first.get("a") == {"name": "caf\udce9 \0 ü", "size": 2**60}
    second = keeper(2)
    assert (second.get("b"), second.get("a")["size"]) == ([2], 2**60)
    second.set("b", [3])
    assert keeper(5).get("b") == [3]


def test_a_deferred_try_reads_what_it_stored(keeper: Keeper) -> None:
    keeper(1).set("a", 1)
    resumed = keeper(1, fresh=False)
    assert resumed.get("a") == 1
    resumed.set("a", 2)
    assert keeper(1, fresh=False).get("a") == 2


def test_task_instances_do_not_see_one_another(keeper: Keeper) -> None:
    keeper(1).set("a", 1)
    for other in ({"dag_id": "e"}, {"run_id": "s"}, {"task_id": "u"}, {"map_index": 0}, {"map_index": 1}):
        assert keeper(1, **other).get("a") is None


def test_a_try_that_was_given_up_stores_nothing_that_later_ones_read(keeper: Keeper) -> None:
    stale = keeper(1)
    stale.set("a", 1)
    later = keeper(2)
    later.set("a", 2)
    with pytest.raises(StaleAttempt):
        stale.set("a", 3)
    assert later.get("a") == 2
    assert keeper(3).get("a") == 2


def test_a_task_instance_that_is_made_anew_reads_nothing_until_it_meets_its_tries(keeper: Keeper) -> None:
    """It was deleted. The tries between the first and the last stored nothing."""
    keeper(1).set("a", 1)
    keeper(4).set("a", 4)
    for number in (1, 3):
        with pytest.raises(StaleAttempt, match=f"Try 4 of this task has begun: try {number} does nothing more"):
            keeper(number, fresh=False).get("a")
    assert keeper(4, fresh=False).get("a") == 4


def test_a_clear_remembers_whether_or_not_the_run_starts_anew(keeper: Keeper) -> None:
    keeper(1).set("a", 1)
    assert keeper(2, run=T0, fresh=False).get("a") == 1
    cleared = keeper(2, run=T1, fresh=False)
    assert cleared.get("a") == 1
    cleared.set("b", 2)
    assert (keeper(3, run=T1, fresh=False).get("a"), keeper(3, run=T1, fresh=False).get("b")) == (1, 2)


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_a_run_that_is_made_anew_under_its_id_remembers_nothing(keeper: Keeper, tries: int) -> None:
    for number in range(1, tries + 1):
        keeper(number).set("a", number)
    anew = keeper(1, run=T1)
    assert anew.get("a") is None
    anew.set("b", 1)
    retry = keeper(2, run=T1, fresh=False)
    assert (retry.get("a"), retry.get("b")) == (None, 1)
    assert keeper(3, run=T1, fresh=False).get("a") is None


def test_a_try_of_a_run_that_was_deleted_since_stores_nothing_that_the_new_run_reads(keeper: Keeper) -> None:
    old = keeper(1)
    old.set("a", 1)
    anew = keeper(1, run=T1)
    anew.set("a", 2)
    with pytest.raises(StaleAttempt):
        old.set("a", 3)
    assert anew.get("a") == 2


# Variables


@pytest.mark.parametrize("error", [ErrorType.API_SERVER_ERROR, ErrorType.GENERIC_ERROR])
def test_an_api_server_that_fails_is_not_taken_for_one_that_has_no_variable(error: ErrorType) -> None:
    supervisor = Supervisor()
    state = VariableState(TaskAttempt("d", "r", "t", -1, 1, T0, True), None, supervisor)
    supervisor.fail_with = error
    for ask in (lambda: state.get("a"), lambda: state.set("a", 1)):
        with pytest.raises(VariablesUnavailable, match=error.name):
            ask()


def test_a_variable_that_is_not_stored_is_an_error() -> None:
    supervisor = Supervisor()
    supervisor.loses_writes = True
    with pytest.raises(VariablesUnavailable, match="does not return"):
        VariableState(TaskAttempt("d", "r", "t", -1, 1, T0, True), None, supervisor).set("a", 1)


@pytest.mark.parametrize("content", ["x", "[]", "{}", json.dumps({"run_started_at": T0, "values": 3})])
def test_a_variable_that_somebody_changed_is_an_error_and_never_a_first_try(content: str) -> None:
    supervisor = Supervisor()
    task_attempt = TaskAttempt("d", "r", "t", -1, 1, T0, True)
    supervisor.running = uuid4()
    VariableState(task_attempt, supervisor.running, supervisor).set("a", 1)
    (key,) = supervisor.variables
    supervisor.variables[key] = content
    with pytest.raises(VariablesUnavailable, match="invalid"):
        VariableState(task_attempt, None, supervisor).get("a")


@pytest.mark.parametrize("key", ["a", "b"])
def test_one_false_absence_does_not_erase_what_this_try_has_stored(key: str) -> None:
    """An API server whose database fails for a moment responds that there is no such Variable."""
    supervisor = Supervisor()
    supervisor.running = uuid4()
    state = VariableState(TaskAttempt("d", "r", "t", -1, 1, T0, True), supervisor.running, supervisor)
    state.set("a", 1)
    supervisor.absent = 1
    state.set(key, 2)
    assert state.get("a") == (2 if key == "a" else 1)


# The table


def test_a_state_that_is_gone_is_an_error_for_its_try(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("sqlite")
    state = TaskState(Warehouse(hook), TaskAttempt("d", "r", "t", -1, 1, T0, True))
    state.set("a", 1)
    hook.run("DELETE FROM outbound_transfer_task_state")
    with pytest.raises(StaleAttempt, match="gone"):
        state.set("a", 2)


def test_a_replica_that_is_behind_is_not_believed(hook_of: Callable[[str], Hook], tmp_path: Path) -> None:
    """A proxy leads what only reads to a replica, which has not got what this try has written."""
    hook = hook_of("sqlite")
    first = TaskState(Warehouse(hook), TaskAttempt("d", "r", "t", -1, 1, T0, True))
    first.set("a", "begun")
    replica = sqlite3.connect(tmp_path / "replica.db")
    with closing(hook.get_conn()) as source:
        source.backup(replica)
    first.set("a", "sent")
    warehouse = Warehouse(hook)
    second = TaskState(warehouse, TaskAttempt("d", "r", "t", -1, 2, T0, False))
    warehouse.read = lambda: closing(replica.cursor())  # type: ignore[method-assign]
    with pytest.raises(UnreliableTable, match="primary"):
        second.get("a")
    replica.close()


def test_a_database_that_takes_two_names_for_one_is_refused(hook_of: Callable[[str], Hook]) -> None:
    """As MySQL, MariaDB and SQL Server do, unless a column says otherwise."""
    hook = hook_of("sqlite")
    warehouse = Warehouse(hook)
    ensure_schema(warehouse, STATE, utc_now())
    with closing(hook.get_conn()) as connection, connection:
        query = "SELECT sql FROM sqlite_master WHERE name = 'outbound_transfer_task_state'"
        (created,) = connection.execute(query).fetchone()
        connection.execute("DROP TABLE outbound_transfer_task_state")
        connection.execute(created.replace("TEXT NOT NULL", "TEXT COLLATE NOCASE NOT NULL"))
    TaskState(warehouse, TaskAttempt("d", "r", "report", -1, 1, T0, True)).set("a", 1)
    with pytest.raises(UnreliableTable, match="collation"):
        TaskState(warehouse, TaskAttempt("d", "r", "Report", -1, 1, T0, True)).get("a")


def test_the_states_of_a_newer_version_are_not_said_to_be_cleaned(hook_of: Callable[[str], Hook]) -> None:
    hook = hook_of("sqlite")
    ensure_schema(Warehouse(hook), STATE, utc_now())
    hook.run("UPDATE outbound_transfer_schema_version SET version = 99")
    with pytest.raises(SchemaTooNew):
        clean_task_states(Warehouse(hook), utc_now())


def test_a_task_instance_that_is_made_anew_in_a_cleared_run_remembers() -> None:
    """It was deleted, so it is a first try again; a run that was made anew was never cleared."""
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(start_date=utc_now(), clear_number=1)}
    assert not TaskAttempt.of(context).is_fresh
    context["dag_run"].clear_number = 0
    assert TaskAttempt.of(context).is_fresh


def test_old_states_are_cleaned(hook_of: Callable[[str], Hook]) -> None:
    warehouse = Warehouse(hook_of("sqlite"))
    before = utc_now()
    TaskState(warehouse, TaskAttempt("d", "r", "t", -1, 1, T0, True)).set("a", 1)
    assert clean_task_states(warehouse, before) == 0
    assert clean_task_states(warehouse, utc_now()) == 1


@pytest.mark.parametrize(
    ("has_native", "options", "expected"),
    [
        (True, [], "native"),
        (True, ["LEDGER_CONN_ID"], "native"),
        (True, ["STATE_CONN_ID"], "table"),
        (False, ["STATE_CONN_ID"], "table"),
        (False, ["LEDGER_CONN_ID"], "table"),
        (False, [], "variables"),
    ],
)
def test_the_first_available_store_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_native: bool, options: list[str], expected: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STATES", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "states.db")}))
    for option in options:
        monkeypatch.setenv(f"AIRFLOW__OUTBOUND_TRANSFER__{option}", "states")
    ti = SimpleNamespace(
        dag_id="d", run_id="r", task_id="t", map_index=None, try_number=1, max_tries=0, id=uuid4(),
        task=SimpleNamespace(retries=0),
    )  # fmt: skip
    native = {"task_state_store": InMemoryStateStore()} if has_native else {}
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(start_date=utc_now()), **native}
    found = state_store(context)
    assert {InMemoryStateStore: "native", TaskState: "table", VariableState: "variables"}[type(found)] == expected
