"""The rows about persons in an Iceberg table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from outbound_transfer.lake.feed_state import ERASED
from outbound_transfer.lake.feed_table import Change, FeedTable, filters
from outbound_transfer.lake.rows import decode_erased, encode_erased, erase_row
from outbound_transfer.store.personal_data import AddressSearch
from outbound_transfer.warehouse.errors import UnusableTable
from outbound_transfer.warehouse.personal_data import LAKE_ROWS, PersonalData
from outbound_transfer.warehouse.timestamps import utc_now


class IcebergPersonalData(PersonalData):
    """The rows about persons in an Iceberg table, of all accounts. Its metadata has no text of a row."""

    def __init__(self, catalog: Catalog, table: str) -> None:
        self._table, self.location = FeedTable(catalog, table), table

    def find(self, search: AddressSearch) -> dict[str, list[dict[str, Any]]]:
        table = self._table.find()
        found = _find(table, search) if table else []
        return {LAKE_ROWS: found} if found else {}

    def erase(self, search: AddressSearch) -> dict[str, int]:
        """Erase an address, then delete all older snapshots and the files that only they have.

        :raises UnusableTable: a branch or a tag keeps old rows; nothing is changed.
        """
        table = self._table.find()
        if not table:
            return {}
        if others := sorted(set(table.refs()) - {"main"}):
            raise UnusableTable(
                f"branches or tags keep rows of the table {self.location}: drop {', '.join(others)} first"
            )
        count = 0

        def plan(table: Table, _: str) -> Change:
            nonlocal count
            found = _find(table, search)
            count = len(found)
            if not found:
                return Change({})
            pages = _of_pages(found)
            rows = table.scan(pages).to_arrow()
            erased = [erase_row(row, search) for row in rows.to_pylist()]
            new = [each[0] if each else row for each, row in zip(erased, rows.to_pylist(), strict=True)]
            known = decode_erased(table.properties.get(ERASED, "[]")) | {each[1] for each in erased if each}
            return Change({ERASED: encode_erased(known)}, pa.Table.from_pylist(new, schema=rows.schema), pages)

        self._table.commit(plan)
        self._purge()
        return {LAKE_ROWS: count} if count else {}

    def _purge(self) -> None:
        """Delete the files of rows that only older snapshots have, and then these snapshots: those of a process that is
        killed in between are found again.
        """
        table = self._table.load()
        for path in _files(table, table.snapshots(), discard_deleted=False) - _files(table, [table.current_snapshot()]):
            with suppress(FileNotFoundError):
                table.io.delete(path)
        self._table.commit(lambda *_: Change({}), expire_before=utc_now() + timedelta(seconds=1))


def _find(table: Table, search: AddressSearch) -> list[dict[str, Any]]:
    """Return the rows that have an address, without reading the table at once."""
    batches = table.scan().to_arrow_batch_reader()
    return [row for batch in batches for row in batch.to_pylist() if erase_row(row, search)]


def _of_pages(rows: Iterable[dict[str, Any]]) -> BooleanExpression:
    """Return the condition of the pages that have some rows: they are rewritten whole."""
    pages: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        pages[row["account"]].add(row["cursor_from"])
    conditions = [
        filters.And(filters.EqualTo("account", account), filters.In("cursor_from", cursors))
        for account, cursors in pages.items()
    ]
    of_all: BooleanExpression = reduce(filters.Or, conditions)
    return of_all


def _files(table: Table, snapshots: Iterable[Snapshot | None], *, discard_deleted: bool = True) -> set[str]:
    manifests = {each.manifest_path: each for one in snapshots if one for each in one.manifests(table.io)}
    return {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=discard_deleted)
    }
