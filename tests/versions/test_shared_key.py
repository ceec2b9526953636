"""What processes share of a key, with the SQLAlchemy that this Airflow brings."""

from __future__ import annotations

from pathlib import Path

from outbound_transfer.protocol.models import TransferPage
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.key_allowance import Key, claim_page, record_refusal, reserve_call, store_page
from outbound_transfer.warehouse.schema import CLUSTER, ensure_schema
from outbound_transfer.warehouse.timestamps import utc_now
from support.warehouses import sqlite_hook

KEY = Key("account.example.com", "digest", "outbound_transfer_default", 60)


def test_calls_and_pages_are_shared(tmp_path: Path) -> None:
    warehouse = Warehouse(sqlite_hook(tmp_path / "state.db"))
    ensure_schema(warehouse, CLUSTER, utc_now())
    assert reserve_call(warehouse, KEY, is_poll=False) == 0.0
    record_refusal(warehouse, KEY, 30.0)
    assert reserve_call(warehouse, KEY, is_poll=False) > 0.0
    number = claim_page(warehouse, KEY, "a", 20.0).number
    assert number
    store_page(warehouse, KEY, "a", number, TransferPage(()))
    assert claim_page(warehouse, KEY, "a", 20.0).page == TransferPage(())
