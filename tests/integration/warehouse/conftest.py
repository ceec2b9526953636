"""What these tests ask of a warehouse, they ask of each database."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.warehouses import DRIVERS, Hook


@pytest.fixture
def hook(warehouse_hook: Hook) -> Hook:
    return warehouse_hook


@pytest.fixture(params=["sqlite", "duckdb", *DRIVERS, "mysqlclient"])
def any_hook(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Hook:
    """A hook of each database through every driver that leads to it."""
    return hook_of(request.param)
