"""The rows of the table of deliveries, as their users see them; no SQLAlchemy is imported."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Stored(NamedTuple):
    """A row as the table keeps it."""

    is_keyed: bool
    account: str
    transfer_id: str
    phase: str
    twin: str
    run_started: str
    memory: str


class Rows(Protocol):
    """The table of deliveries."""

    def read(self, key: str) -> tuple[int, str]:
        """Return a row's version and memory; 0 and "" if there is none."""

    def put(self, key: str, version: int, row: Stored) -> bool:
        """Insert a row (version 0), or update it if it still has this version; return whether it was stored."""

    def find(self, transfer_id: str) -> list[tuple[str, str]]:
        """Return the keys and accounts of the rows of a transfer."""

    def find_twin(self, key: str, twin: str, run_started: str) -> str:
        """Return the transfer id of another row that is sending the same; "" if there is none.

        :param run_started: only of rows that were claimed in a run that started then; any if it is "".
        """
