"""Snowflake behind its own driver: fakesnow, in the process or behind its server."""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import fakesnow
import snowflake.connector
from snowflake.connector.converter import SnowflakeConverter

from outbound_transfer.warehouse.connection import open_warehouse
from outbound_transfer.warehouse.database import Warehouse

CONNECTION = json.dumps(
    {
        "conn_type": "snowflake",
        "login": "airflow",
        "password": "not-secret",
        "schema": "analytics",
        "extra": {"account": "an-account", "database": "raw", "warehouse": "loading"},
    }
)

_TEXT = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)


@contextmanager
def fake_snowflake() -> Iterator[None]:
    """An empty Snowflake in the process, which the connector leads to."""
    with quiet(), fakesnow.patch():
        yield


@contextmanager
def snowflake_server() -> Iterator[None]:
    """A Snowflake that the real connector speaks HTTP with. Its databases last as long as the process."""
    with quiet(), fakesnow.server() as options:
        place = {name: options[name] for name in ("host", "port", "protocol")}
        connect = functools.partial(_connect, snowflake.connector.connect, place)
        with mock.patch("snowflake.connector.connect", connect):
            yield


def _connect(connect: Any, place: dict[str, Any], **options: Any) -> Any:
    # Airflow's hook has no option for the protocol.
    parameters = {"CLIENT_OUT_OF_BAND_TELEMETRY_ENABLED": False}
    return connect(**{**options, **place, "session_parameters": parameters})


@contextmanager
def quiet() -> Iterator[None]:
    """Without the emulator's warnings of comments on columns, which it leaves out."""
    loggers = [logging.getLogger(name) for name in ("sqlglot", "fakesnow.server", "uvicorn.access")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)


@dataclass
class Recorder:
    """The statements of warehouses, with their values filled in as the connector does."""

    statements: list[str] = field(default_factory=list)

    def open(self, *, prefix: str = "outbound_transfer_", schema: str | None = None) -> Warehouse:
        warehouse = open_warehouse("warehouse", prefix=prefix, schema=schema)
        connect = warehouse.connect
        warehouse.connect = lambda: _Recorded(connect(), self)
        return warehouse

    def names(self) -> set[str]:
        """The identifiers in quotes."""
        return {name for each in self.statements for name in re.findall(r'"([^"]*)"', _TEXT.sub("", each))}

    def transactions(self) -> list[list[str]]:
        """The statements of each transaction that is committed."""
        found: list[list[str]] = []
        current: list[str] = []
        for each in self.statements:
            if each == "BEGIN TRANSACTION":
                current = []
            elif each == "COMMIT":
                found.append(current)
            else:
                current.append(each)
        return found


class _Recorded:
    def __init__(self, inner: Any, recorder: Recorder) -> None:
        self.inner, self.recorder = inner, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def cursor(self) -> Any:
        return _Recorded(self.inner.cursor(), self.recorder)

    def commit(self) -> None:
        self.recorder.statements.append("COMMIT")
        self.inner.commit()

    def execute(self, statement: str, values: Any = None) -> Any:
        convert = SnowflakeConverter()
        filled = [convert.quote(convert.escape(convert.to_snowflake(value))) for value in values or ()]
        self.recorder.statements.append(statement % tuple(filled) if filled else statement)
        return self.inner.execute(statement, values)


def fetch(query: str) -> list[tuple[Any, ...]]:
    """Run a query as an analyst types it."""
    warehouse = open_warehouse("warehouse", prefix="any_", schema=None)
    with closing(warehouse.connect()) as connection:
        return [tuple(row) for row in connection.cursor().execute(query).fetchall()]
