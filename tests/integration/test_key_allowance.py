"""The allowance of a key in each database: sessions reserve one after the other, by the database's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from outbound_transfer.protocol.call_schedule import MARGIN, WINDOW
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.key_allowance import record_refusal, reserve_call
from outbound_transfer.warehouse.key_rows import Key
from outbound_transfer.warehouse.schema import CLUSTER, ensure_schema
from outbound_transfer.warehouse.timestamps import utc_now
from support.warehouses import Hook

KEY = Key("account.example.com", "digest", "outbound_transfer_default", 60)


@pytest.fixture(params=["sqlite", "psycopg", "psycopg2", "mysqlclient"])
def warehouse_hook(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Hook:
    """A hook of each database that processes can share."""
    return hook_of(request.param)


@pytest.fixture
def warehouse(warehouse_hook: Hook) -> Warehouse:
    """Its clock stands still, so that the machine's speed plays no part."""
    warehouse = Warehouse(warehouse_hook)
    ensure_schema(warehouse, CLUSTER, utc_now())
    warehouse.epoch_time = lambda tx: 1_790_000_000.0  # type: ignore[method-assign]
    return warehouse


def test_the_databases_clock(warehouse_hook: Hook) -> None:
    warehouse = Warehouse(warehouse_hook)
    with warehouse.read() as tx:
        assert abs(warehouse.epoch_time(tx) - time.time()) < 60


def test_sessions_at_once_share_one_allowance(warehouse: Warehouse) -> None:
    def reserve(_: int) -> float:
        return reserve_call(warehouse, KEY, is_poll=False)

    with ThreadPoolExecutor(4) as pool:
        delays = sorted(pool.map(reserve, range(70)))
    assert delays == [0.0] * 60 + [WINDOW + MARGIN] * 10


def test_keys_do_not_share(warehouse: Warehouse) -> None:
    for key in (KEY, KEY._replace(digest="other"), KEY._replace(account="other")):
        assert [reserve_call(warehouse, key, is_poll=False) for _ in range(10)] == [0.0] * 10


def test_a_refusal_holds_up_every_session(warehouse: Warehouse) -> None:
    assert reserve_call(warehouse, KEY, is_poll=False) == 0.0
    record_refusal(warehouse, KEY, 30.0)
    assert reserve_call(warehouse, KEY, is_poll=False) == 30.0


def test_what_operations_can_see(warehouse: Warehouse, warehouse_hook: Hook) -> None:
    for _ in range(61):
        reserve_call(warehouse, KEY, is_poll=False)
    record_refusal(warehouse, KEY, 5.0)
    ((conn_id, calls, is_refused, is_ahead),) = warehouse_hook.fetch(
        "SELECT conn_id, calls_per_minute, refused_at IS NOT NULL, reserved_until > updated_at "
        "FROM outbound_transfer_key_allowance"
    )
    assert (conn_id, calls, bool(is_refused), bool(is_ahead)) == ("outbound_transfer_default", 60, True, True)


def test_a_row_that_was_deleted_is_created_again(warehouse: Warehouse, warehouse_hook: Hook) -> None:
    reserve_call(warehouse, KEY, is_poll=False)
    warehouse_hook.run("DELETE FROM outbound_transfer_key_allowance")
    assert [reserve_call(warehouse, KEY, is_poll=False) for _ in range(3)] == [0.0] * 3
    assert warehouse_hook.fetch("SELECT count(*) FROM outbound_transfer_key_allowance") == [(1,)]


@pytest.mark.parametrize("stored", ["", "[]", "{", '{"calls": ["x"]}'])
def test_a_schedule_that_cannot_be_read_is_begun_anew(warehouse: Warehouse, warehouse_hook: Hook, stored: str) -> None:
    reserve_call(warehouse, KEY, is_poll=False)
    warehouse_hook.run(f"UPDATE outbound_transfer_key_allowance SET schedule = '{stored}'")
    assert reserve_call(warehouse, KEY, is_poll=False) == 0.0
