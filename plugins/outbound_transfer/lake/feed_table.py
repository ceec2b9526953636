"""An Iceberg table of events: created, and changed in single commits."""

from __future__ import annotations

import logging
import random
import time
import uuid
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyiceberg.expressions
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.transforms import DayTransform

from outbound_transfer.lake.feed_state import COMMIT, find_commit
from outbound_transfer.lake.rows import SCHEMA
from outbound_transfer.store.errors import UnusableTable, WarehouseBusy
from outbound_transfer.store.naming import check_table

log = logging.getLogger(__name__)

#: Conditions on rows; without types: those of the constructors deny the arguments that they are documented with.
filters: Final[Any] = pyiceberg.expressions

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

#: Attempts at a commit that others overtake.
_MAX_ATTEMPTS: Final = 30

#: Seconds: the backoff before the second attempt, and its maximum.
_MIN_BACKOFF, _MAX_BACKOFF = 0.05, 2.0


class Change(NamedTuple):
    """What a commit changes at once.

    :ivar properties: table properties to set.
    :ivar append: rows to append; there may be none.
    :ivar delete: which rows to delete before that.
    """

    properties: dict[str, str]
    append: pa.Table = SCHEMA.empty_table()
    delete: BooleanExpression | None = None


class FeedTable:
    """A table of an Iceberg catalog with the columns of :data:`.SCHEMA`.

    :param name: namespace and table, with dots.
    :raises InvalidName: the name has no namespace.
    """

    def __init__(self, catalog: Catalog, name: str) -> None:
        check_table(name)
        self.catalog, self.name = catalog, name

    def load(self) -> Table:
        """Return the table as it is now."""
        return self.catalog.load_table(self.name)

    def find(self) -> Table | None:
        """Return the table as it is now; None if there is none."""
        try:
            return self.load()
        except NoSuchTableError:
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
                log.debug("Another commit to %s came first", self.name)
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
    transaction._snapshot_producers = []
