"""The tables of a shared poll in each database: one holder, and only its readings."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.protocol.poll_lease import LEASE_SECONDS, ClusterState, ProcessState, SharedWaiter
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.key_rows import Key
from outbound_transfer.warehouse.poll_tables import PollTables
from outbound_transfer.warehouse.schema import CLUSTER, ensure_schema
from outbound_transfer.warehouse.timestamps import utc_now
from support.warehouses import Hook

KEY = Key("account.example.com", "digest", "outbound_transfer_default", 60)
NOW = 1_800_000_000.0
WAITED = {"t1": SharedWaiter(60, 0)}
TRANSFER = Transfer("t1", "complete", "Repört \0", recipients=(Recipient("ann@example.com"),))


class Clock:
    now = NOW


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def warehouse(warehouse_hook: Hook, clock: Clock) -> Warehouse:
    warehouse = Warehouse(warehouse_hook)
    ensure_schema(warehouse, CLUSTER, utc_now())
    warehouse.epoch_time = lambda _: clock.now  # type: ignore[method-assign]
    return warehouse


def sync(
    tables: PollTables, waiters: dict[str, SharedWaiter], *, can_poll: bool = True, **readings: Any
) -> ClusterState:
    return tables.sync(ProcessState(waiters, readings, can_poll, has_polled=True))


def test_processes_that_start_at_once_elect_one(warehouse: Warehouse, warehouse_hook: Hook) -> None:
    def start(number: int) -> ClusterState:
        own = Warehouse(warehouse_hook)
        return sync(PollTables(own, KEY, f"p{number}"), {f"t{number}": SharedWaiter(60, 0)})

    threads = 1 if warehouse_hook.dialect_name == "duckdb" else 4  # which no two processes share
    with ThreadPoolExecutor(threads) as pool:
        states = list(pool.map(start, range(8)))
    assert sum(state.is_holder for state in states) == 1
    assert all(state.has_holder for state in states)


@pytest.mark.parametrize("name", ["psycopg", "psycopg2", "mysqlclient"])  # the others let one session write at a time
def test_a_row_that_appears_between_two_statements_is_locked(hook_of: Callable[[str], Hook], name: str) -> None:
    hook = hook_of(name)
    first, second = Warehouse(hook), Warehouse(hook)
    ensure_schema(first, CLUSTER, utc_now())
    tables, others = PollTables(first, KEY, "a"), PollTables(second, KEY, "b")
    run, clock = first.run, first.epoch_time
    threads: list[Future[ClusterState]] = []

    def run_and_let_the_row_appear(tx: Any, statement: str, parameters: Any = (), **names: Any) -> Any:
        result = run(tx, statement, parameters, **names)
        if statement.startswith("UPDATE") and not threads:
            sync(PollTables(second, KEY, "c"), {})
            PollTables(second, KEY, "c").leave()
        return result

    def read_clock_while_another_syncs(tx: Any) -> float:
        if not threads:
            threads.append(pool.submit(sync, others, {}))
            wait(threads, timeout=0.5)  # which it spends at the lock
        return clock(tx)

    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(first, "run", run_and_let_the_row_appear)
        patch.setattr(first, "epoch_time", read_clock_while_another_syncs)
        states = [sync(tables, {}), threads[0].result()]
    assert [state.is_holder for state in states] == [True, False]


def test_the_holder_reads_what_is_waited_for_and_the_others_what_it_has_read(warehouse: Warehouse) -> None:
    holder, other = PollTables(warehouse, KEY, "a"), PollTables(warehouse, KEY, "b")
    assert sync(holder, {}).is_holder
    assert sync(other, WAITED) == ClusterState(is_holder=False, has_holder=True, others={}, readings={})
    assert sync(holder, {}).others == WAITED
    assert sync(holder, {}, t1=TRANSFER, t2=None).others == WAITED
    assert sync(other, WAITED).readings == {"t1": TRANSFER}
    assert sync(other, WAITED).readings == {}
    late = PollTables(warehouse, KEY, "c")
    assert sync(late, WAITED).readings == {"t1": TRANSFER}, "who joins gets what is there"


def test_a_holder_that_wakes_up_publishes_nothing(warehouse: Warehouse, clock: Clock) -> None:
    frozen, other, third = (PollTables(warehouse, KEY, name) for name in "abc")
    assert sync(frozen, {}).is_holder
    sync(other, {})
    sync(third, WAITED)
    clock.now += LEASE_SECONDS + 1
    assert sync(other, {}).is_holder
    sync(third, WAITED)
    assert not sync(frozen, {}, t1=TRANSFER).is_holder
    assert sync(third, WAITED).readings == {}


def test_the_rows_of_a_dead_process_are_removed_and_written_anew_when_it_wakes_up(
    warehouse: Warehouse, clock: Clock
) -> None:
    holder, other = PollTables(warehouse, KEY, "a"), PollTables(warehouse, KEY, "b")
    sync(holder, {})
    sync(other, WAITED)
    assert sync(holder, {}).others == WAITED
    clock.now += LEASE_SECONDS / 2
    sync(holder, {})
    clock.now += LEASE_SECONDS / 2
    assert sync(holder, {}).others == {}
    sync(other, WAITED)
    assert sync(holder, {}).others == WAITED


def test_one_that_leaves_frees_the_lease_and_waits_for_nothing(warehouse: Warehouse, warehouse_hook: Hook) -> None:
    holder, other = PollTables(warehouse, KEY, "a"), PollTables(warehouse, KEY, "b")
    sync(holder, {"t9": SharedWaiter(60, 0)})
    sync(other, WAITED)
    sync(holder, {"t9": SharedWaiter(60, 0)}, t1=TRANSFER)
    holder.leave()
    state = sync(other, {})
    assert state.is_holder
    assert state.others == {}
    for table in ("poll_waiters", "poll_readings"):
        assert warehouse_hook.fetch(f"SELECT count(*) FROM outbound_transfer_{table}") == [(0,)]


def test_the_last_one_that_leaves_removes_the_readings(warehouse: Warehouse, warehouse_hook: Hook) -> None:
    holder, other = PollTables(warehouse, KEY, "a"), PollTables(warehouse, KEY, "b")
    sync(holder, {})
    sync(other, WAITED)
    sync(holder, {}, t1=TRANSFER)
    other.leave()
    returned = PollTables(warehouse, KEY, "c")
    assert sync(returned, WAITED).readings == {"t1": TRANSFER}, "the holder does not publish it again"
    returned.leave()
    holder.leave()
    assert warehouse_hook.fetch("SELECT count(*) FROM outbound_transfer_poll_readings") == [(0,)]


@pytest.mark.parametrize(
    "lease",
    [
        '{"polled_at":1e300}',
        '{"polled_at":-1e300}',
        '{"holder":"a","held_since":1e300,"seen_at":{"a":1800000000}}',
        '{"sequence":9223372036854775807}',
    ],
)
def test_a_damaged_lease_is_forgotten(warehouse: Warehouse, warehouse_hook: Hook, lease: str) -> None:
    holder, other = PollTables(warehouse, KEY, "a"), PollTables(warehouse, KEY, "b")
    sync(holder, {})
    warehouse_hook.run(f"UPDATE outbound_transfer_poll_leases SET lease = '{lease}'")
    assert sync(other, WAITED).is_holder
    sync(holder, WAITED)
    assert sync(other, {}).others == WAITED


def test_keys_do_not_share(warehouse: Warehouse) -> None:
    for key in (KEY, KEY._replace(digest="other"), KEY._replace(account="other")):
        assert sync(PollTables(warehouse, key, "a"), WAITED).is_holder


def test_a_changed_waiter_replaces_its_row(warehouse: Warehouse) -> None:
    holder, other = PollTables(warehouse, KEY, "a"), PollTables(warehouse, KEY, "b")
    sync(holder, {})
    sync(other, {f"t{number}": SharedWaiter(60, 0) for number in range(1_200)})
    assert len(sync(holder, {}).others) == 1_200
    sync(other, {"t1": SharedWaiter(10, 1_000), "t2": SharedWaiter(60, 0)})
    assert sync(holder, {}).others == {"t1": SharedWaiter(10, 1_000), "t2": SharedWaiter(60, 0)}


def test_what_no_database_stores_is_left_to_the_others(warehouse: Warehouse) -> None:
    holder, other = PollTables(warehouse, KEY, "a"), PollTables(warehouse, KEY, "b")
    sync(holder, {})
    sync(other, WAITED)
    sync(holder, {}, t1=Transfer("t1", "complete", "half \ud800"))
    assert sync(other, WAITED).readings == {"t1": None}
