"""An Iceberg table of events: created, changed in single commits; the state of its feeds is in its properties."""

from __future__ import annotations

import random
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.transforms import DayTransform

from outbound_transfer.client.events import Page
from outbound_transfer.lake.rows import SCHEMA
from outbound_transfer.store.config import check_table
from outbound_transfer.store.errors import InvalidCursor, UnusableTable, WarehouseBusy

#: What a transaction would commit again, and whose files it would delete; see :func:`_stage`.
_PRODUCERS: Final = "_snapshot_producers"
if _PRODUCERS not in Transaction.__init__.__code__.co_names:
    raise ImportError("this version of pyiceberg commits differently from 0.12: install 'pyiceberg>=0.12,<0.13'")

_PREFIX: Final = "outbound-transfer."
_FEED: Final = f"{_PREFIX}feed."

#: Before an account's name, the property with the site address that it is bound to; a commit's id in its snapshot.
ADDRESS: Final = f"{_PREFIX}address."
COMMIT: Final = f"{_PREFIX}commit"

_METRICS: Final = "write.metadata.metrics"

_PROPERTIES: Final = {
    "format-version": "2",
    # A lost commit of anybody must not be repeated on top of the one that won: it may add the same rows.
    "commit.retry.num-retries": "0",
    # Each page is a manifest, and each commit reads their list.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    # No bound of a text from outside: pyiceberg shortens it and increments its last character, and nothing encodes
    # what follows U+D7FF. By these columns rows are searched for.
    f"{_METRICS}.default": "counts",
    **{f"{_METRICS}.column.{name}": "full" for name in ("account", "cursor_from", "occurred_at", "loaded_at")},
}

#: Attempts at a commit that others overtake; seconds before the second one, and at most.
_MAX_ATTEMPTS: Final = 30
_MIN_BACKOFF, _MAX_BACKOFF = 0.05, 2.0


class FeedState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one account's feed.

    :ivar commit: the commit that wrote this state.
    :ivar has_more: whether more came after the last page; None if none is loaded.
    """

    cursor: int = 0
    commit: str = ""
    updated_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    has_more: bool | None = None

    def after(self, page: Page) -> FeedState:
        """Return the state after a page is loaded."""
        return msgspec.structs.replace(self, cursor=page.next_cursor, has_more=page.has_more)

    def as_properties(self, account: str) -> dict[str, str]:
        """Return the property that :func:`read_state` reads."""
        return {f"{_FEED}{account}": msgspec.json.encode(self).decode()}


def list_accounts(properties: Mapping[str, str]) -> list[str]:
    """Return the accounts whose feeds have been read into the table."""
    return sorted(name.removeprefix(_FEED) for name in properties if name.startswith(_FEED))


def read_state(metadata: TableMetadata, account: str) -> FeedState | None:
    """Return the state of a feed; None if the feed has never been read.

    :raises InvalidCursor: the property is not a state, or somebody rolled the rows back and not the property.
    """
    feed = metadata.properties.get(f"{_FEED}{account}")
    if feed is None:
        return None
    try:
        state = msgspec.json.decode(feed, type=FeedState)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidCursor(
            f"the table's property '{_FEED}{account}' is not as this package writes it ({error}): "
            "`feed rebuild-cursor` sets the cursor from the rows"
        ) from error
    if _is_rolled_back(metadata, state.commit):
        raise InvalidCursor(
            f"the table was rolled back or replaced: its property has the cursor {state.cursor} of the feed {account}, "
            "but its rows are from another time. `feed rebuild-cursor` sets the cursor from the rows"
        )
    return state


def require_state(table: Table, account: str) -> FeedState:
    """Return the state of a feed.

    :raises InvalidCursor: there is none, or see :func:`read_state`.
    """
    if state := read_state(table.metadata, account):
        return state
    raise InvalidCursor(
        f"the table {'.'.join(table.name())} has events of {account} but no cursor: it was replaced, or its properties "
        "were removed. `feed rebuild-cursor` sets the cursor from the rows"
    )


def find_commit(metadata: TableMetadata, commit_id: str) -> Snapshot | None:
    """Return the last snapshot of a commit; None if it is not there, or has expired."""
    found = (each for each in reversed(metadata.snapshots) if each.summary and each.summary[COMMIT] == commit_id)
    return next(found, None)


def _is_rolled_back(metadata: TableMetadata, commit_id: str) -> bool:
    """Return whether the table's rows are certainly without a commit. One that has expired proves nothing."""
    commit, lineage = find_commit(metadata, commit_id), list(ancestors_of(metadata.current_snapshot(), metadata))
    if commit is None or not lineage:
        return not lineage  # an expiry leaves the newest snapshot
    # Others in between may have expired: then the lineage that is known ends after the commit.
    return commit not in lineage and (lineage[-1].sequence_number or 0) < (commit.sequence_number or 0)


class Change(NamedTuple):
    """The changes of one commit: table properties to set, rows to append, and rows to delete before that."""

    properties: dict[str, str]
    append: pa.Table = SCHEMA.empty_table()
    delete: BooleanExpression | None = None


class FeedTable:
    """A table of an Iceberg catalog with the columns of :data:`.SCHEMA`; its name has a namespace and dots."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        check_table(name)
        self.catalog, self.name = catalog, name

    def load(self) -> Table:
        """Return the table as it is now."""
        return self.catalog.load_table(self.name)

    def find(self) -> Table | None:
        """Return the table as it is now; None if there is none."""
        with suppress(NoSuchTableError):
            return self.load()
        return None

    def find_or_create(self) -> Table:
        """Return the table as it is now; create it if there is none.

        :raises UnusableTable: its namespace does not exist.
        """
        if (table := self.find()) is not None:
            return table
        numbers = [{"field-id": number, "names": [name]} for number, name in enumerate(SCHEMA.names, 1)]
        schema = pyarrow_to_schema(SCHEMA, NameMapping.model_validate(numbers))
        day = PartitionField(schema.find_field("loaded_at").field_id, 1000, DayTransform(), "loaded_at_day")
        try:
            return self.catalog.create_table_if_not_exists(
                self.name, schema, partition_spec=PartitionSpec(day), properties=_PROPERTIES
            )
        except NoSuchNamespaceError as error:
            namespace = self.name.rpartition(".")[0]
            raise UnusableTable(f"the namespace {namespace} does not exist in the catalog: create it first") from error

    def commit(self, plan: Callable[[Table, str], Change], expire_before: datetime | None = None) -> Table:
        """Commit a change, whole or not at all; again from the fresh table if another commit came first.

        :param plan: returns the change of a table as it is now, given the commit's id; it may raise.
        :param expire_before: older snapshots expire in the same commit, except heads of branches, and tags.
        :return: the table after it.
        :raises WarehouseBusy: other commits came first each time.
        :raises UnusableTable: the table does not have the columns of the rows.
        """
        commit_id = uuid.uuid4().hex
        for attempt in range(_MAX_ATTEMPTS):
            table = self.load()
            if find_commit(table.metadata, commit_id):  # it was reported as failed
                return table
            transaction = table.transaction()
            try:
                _stage(transaction, plan(table, commit_id), commit_id, expire_before)
            except ValueError as error:
                raise UnusableTable(f"the table {self.name} is not as this package creates it: {error}") from error
            try:
                return transaction.commit_transaction()
            except (CommitFailedException, ValueError):  # of the second, another one expired the same snapshots
                time.sleep(random.uniform(0.5, 1) * min(_MIN_BACKOFF * 2**attempt, _MAX_BACKOFF))  # noqa: S311
            except Exception:
                after = self.load()  # the response may be what was lost
                if find_commit(after.metadata, commit_id) is None:
                    raise
                return after
        raise WarehouseBusy(f"other commits to the table {self.name} came first {_MAX_ATTEMPTS} times")


def _stage(transaction: Transaction, change: Change, commit_id: str, expire_before: datetime | None) -> None:
    summary = {COMMIT: commit_id}
    transaction.set_properties(change.properties)
    if expire_before:
        ExpireSnapshots(transaction).older_than(expire_before).commit()
    if change.delete is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "did not match any records"
            transaction.delete(change.delete, snapshot_properties=summary)
    # Always, even without rows: commits without a snapshot do not exclude one another.
    transaction.append(change.append, snapshot_properties=summary)
    # Without these, pyiceberg neither repeats a lost commit on top of another one, whatever the table's properties
    # say, nor deletes files of a commit that a catalog reports as failed after it took effect.
    setattr(transaction, _PRODUCERS, [])
