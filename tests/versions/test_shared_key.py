"""What processes share of a key, with the SQLAlchemy that this Airflow brings."""

from __future__ import annotations

from pathlib import Path

from outbound_transfer.protocol.poll_lease import ProcessState
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.key_allowance import record_refusal, reserve_call
from outbound_transfer.warehouse.key_rows import Key
from outbound_transfer.warehouse.poll_tables import PollTables
from outbound_transfer.warehouse.schema import CLUSTER, ensure_schema
from outbound_transfer.warehouse.timestamps import utc_now
from support.warehouses import sqlite_hook

KEY = Key("account.example.com", "digest", "outbound_transfer_default", 60)


def test_calls_and_poll_are_shared(tmp_path: Path) -> None:
    warehouse = Warehouse(sqlite_hook(tmp_path / "state.db"))
    ensure_schema(warehouse, CLUSTER, utc_now())
    assert reserve_call(warehouse, KEY, is_poll=False) == 0.0
    record_refusal(warehouse, KEY, 30.0)
    assert reserve_call(warehouse, KEY, is_poll=False) > 0.0
    own = ProcessState({}, {}, can_poll=True, has_polled=True)
    states = [PollTables(warehouse, KEY, name).sync(own) for name in "ab"]
    assert [state.is_holder for state in states] == [True, False]
