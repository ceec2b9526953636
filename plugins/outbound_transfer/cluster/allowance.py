"""A key's allowance, shared by all processes that use the key and the same database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbound_transfer.cluster.database import CALLS, DatabaseUnavailable, SharedDatabase, find_database
from outbound_transfer.warehouse.key_allowance import Key, record_refusal, reserve_call

if TYPE_CHECKING:
    from outbound_transfer.client import Settings
    from outbound_transfer.warehouse.database import Warehouse


class SharedAllowance:
    """Reserves calls in the shared database. While that is unavailable, every call is made at once.

    :param is_poll: whether the calls are those of polls, which give way to deliveries.
    """

    def __init__(self, database: SharedDatabase, key: Key, *, is_poll: bool) -> None:
        self._database, self._key, self._is_poll = database, key, is_poll

    def reserve(self) -> float:
        try:
            return self._database.run(self._reserve)
        except DatabaseUnavailable:
            return 0.0

    def record_refusal(self, retry_after: float) -> None:
        self._database.submit(lambda warehouse: record_refusal(warehouse, self._key, retry_after))

    def record_repeat(self) -> None:
        self._database.submit(self._reserve)

    def _reserve(self, warehouse: Warehouse) -> float:
        return reserve_call(warehouse, self._key, is_poll=self._is_poll)


def find_allowance(settings: Settings, conn_id: str, *, is_poll: bool) -> SharedAllowance | None:
    """Return the allowance of a connection's key; None if no database is shared.

    Asks Airflow for the database's connection, so call it where this is allowed.
    """
    database = find_database(CALLS)
    if database is None:
        return None
    return SharedAllowance(database, key_of(settings, conn_id), is_poll=is_poll)


def key_of(settings: Settings, conn_id: str) -> Key:
    """Return the key that a connection has; the database gets only a digest of it."""
    return Key(settings.account, settings.key_digest, conn_id, settings.calls_per_minute)
