"""What these tests ask of the store, they ask of each database and driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outbound_transfer.store.engine import Database
from support import mariadb as mariadb_support
from support.warehouses import DRIVERS, Hook

MYSQL = {"mysqlclient": 0, "mysqlclient-found-rows": 2}


@pytest.fixture
def store_hook_of(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Callable[[str], Hook]:
    def make(name: str) -> Hook:
        if name not in MYSQL:
            return hook_of(name)
        mariadb: mariadb_support.Database = request.getfixturevalue("mariadb")
        return Hook("mysql", lambda: mariadb.connect(client_flag=MYSQL[name]))

    return make


@pytest.fixture(params=["sqlite", "duckdb", *DRIVERS, *MYSQL])
def database(request: pytest.FixtureRequest, store_hook_of: Callable[[str], Hook]) -> Database:
    return Database(store_hook_of(request.param), "events or transfers")


@pytest.fixture
def hook(warehouse_hook: Hook) -> Hook:
    return warehouse_hook


@pytest.fixture(params=["sqlite", "duckdb", *DRIVERS, *MYSQL])
def any_hook(request: pytest.FixtureRequest, store_hook_of: Callable[[str], Hook]) -> Hook:
    """A hook of each database through every driver that leads to it."""
    return store_hook_of(request.param)
