"""The rows about persons in an Iceberg table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from outbound_transfer.lake.feed_state import ERASED_ADDRESSES, list_accounts, read_erased
from outbound_transfer.lake.feed_table import Change, FeedTable, filters
from outbound_transfer.lake.rows import SCHEMA, redact_rows
from outbound_transfer.protocol.personal_data import Replace, only
from outbound_transfer.warehouse.errors import UnusableTable
from outbound_transfer.warehouse.privacy import PersonalData, read_privacy, without_others
from outbound_transfer.warehouse.timestamps import utc_now

#: Table of the rows of a lake in counts.
_ROWS: Final = "events"


class IcebergPersonalData(PersonalData):
    """The rows about persons in an Iceberg table, of all accounts. No text of a row is in its metadata."""

    def __init__(self, catalog: Catalog, table: str) -> None:
        self._table, self.location = FeedTable(catalog, table), table

    def find(self, address: str) -> dict[str, list[dict[str, Any]]]:
        rows = [row for batch, _ in self._changes(self._table.find(), only(address)) for row in batch.to_pylist()]
        return {_ROWS: [without_others(row, address) for row in rows]} if rows else {}

    @staticmethod
    def _changes(table: Table | None, replace: Replace) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield the rows that change, as they are and as they are to be."""
        for batch in table.scan().to_arrow_batch_reader() if table else ():
            rows = pa.Table.from_batches([batch]).cast(SCHEMA)
            redacted, changed = redact_rows(rows, replace)
            if len(changed):
                yield rows.take(changed), redacted.take(changed)

    def erase(self, address: str) -> dict[str, int]:
        self._check_references()
        digest, counts = read_privacy().digest(address), {}

        def plan(table: Table, _: str) -> Change:
            found = list(self._changes(table, only(address)))
            new = pa.concat_tables([SCHEMA.empty_table(), *(after for _, after in found)])
            counts[_ROWS] = new.num_rows
            erased = json.dumps(sorted({*read_erased(table.properties), digest}))
            return Change({ERASED_ADDRESSES: erased}, new, _same_lines(new))

        self._table.commit(plan)
        self._purge()
        return {name: count for name, count in counts.items() if count}

    def delete_before(self, time: datetime, *, is_rehearsal: bool) -> dict[str, int]:
        table = self._table.find()
        accounts = list_accounts(table.properties) if table else []
        conditions = [each for account in accounts if table and (each := _older(table, account, time))]
        if not table or not conditions:
            return {}
        self._check_references()
        old = _any(conditions)
        count = table.scan(old, selected_fields=("account",)).to_arrow().num_rows
        if count and not is_rehearsal:
            self._table.commit(lambda *_: Change({}, delete=old))
            self._purge()
        return {_ROWS: count} if count else {}

    def _check_references(self) -> None:
        """Check that nothing but the newest snapshot stays.

        :raises UnusableTable: a branch or a tag keeps old rows.
        """
        table = self._table.find()
        if table and (others := sorted(set(table.refs()) - {"main"})):
            raise UnusableTable(
                f"branches or tags keep rows of the table {self.location}: drop {', '.join(others)} first"
            )

    def _purge(self) -> None:
        """Delete the files of rows that only older snapshots have, and these snapshots, in this order: those of a
        process that is killed in between are found again.
        """
        table = self._table.load()
        for path in _files(table, table.snapshots(), discard_deleted=False) - _files(table, [table.current_snapshot()]):
            with suppress(FileNotFoundError):
                table.io.delete(path)
        self._table.commit(lambda *_: Change({}), expire_before=utc_now() + timedelta(seconds=1))


def _files(table: Table, snapshots: Sequence[Snapshot | None], *, discard_deleted: bool = True) -> set[str]:
    manifests = {each.manifest_path: each for one in snapshots if one for each in one.manifests(table.io)}
    return {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=discard_deleted)
    }


def _same_lines(rows: pa.Table) -> BooleanExpression | None:
    """Return the condition of lines; None if there are none."""
    lines: dict[tuple[str, int], list[int]] = {}
    for row in rows.to_pylist():
        lines.setdefault((row["account"], row["cursor_from"]), []).append(row["line_number"])
    pages = [
        filters.And(
            filters.EqualTo("account", account),
            filters.EqualTo("cursor_from", cursor),
            filters.In("line_number", numbers),
        )
        for (account, cursor), numbers in lines.items()
    ]
    return _any(pages) if pages else None


def _any(conditions: list[BooleanExpression]) -> BooleanExpression:
    return conditions[0] if len(conditions) == 1 else filters.Or(*conditions)


def _older(table: Table, account: str, time: datetime) -> BooleanExpression | None:
    """Return the condition of an account's rows that were loaded before a time, but the newest page."""
    is_of = filters.EqualTo("account", account)
    newest = pc.max(table.scan(is_of, selected_fields=("cursor_from",)).to_arrow()["cursor_from"]).as_py()
    if newest is None:
        return None
    is_old = filters.LessThan("loaded_at", time.isoformat())
    old: BooleanExpression = filters.And(is_of, is_old, filters.LessThan("cursor_from", newest))
    return old
