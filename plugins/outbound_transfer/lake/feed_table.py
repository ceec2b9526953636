"""An Iceberg table of events and its log of polls: created, checked, and changed in single commits."""

from __future__ import annotations

import logging
import random
import time
import uuid
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import BooleanExpression
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from outbound_transfer.lake.catalog import IcebergCatalog
from outbound_transfer.lake.feed_state import COMMIT
from outbound_transfer.lake.lineage import find_commit
from outbound_transfer.warehouse.errors import UnusableTable, WarehouseBusy
from outbound_transfer.warehouse.naming import check_table

log = logging.getLogger(__name__)

_TYPES: Final[dict[pa.DataType, IcebergType]] = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
}

_PROPERTIES: Final = {
    "format-version": "2",
    # A lost append must not be repeated on top of the one that won: it would add the rows again.
    "commit.retry.num-retries": "0",
    # Each page is a manifest, and each commit reads their list.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}

#: The table property that says which bounds of a column's values are in the metadata of a file.
_METRICS: Final = "write.metadata.metrics.column."

#: Attempts at a commit that others overtake.
_MAX_ATTEMPTS: Final = 30

#: Attempts at a commit that fails otherwise, or in doubt.
_MAX_FAILURES: Final = 3

#: Seconds: the backoff before the second attempt, and its maximum.
_MIN_BACKOFF, _MAX_BACKOFF = 0.05, 2.0

#: Snapshots that are never expired, whatever their age.
_MIN_SNAPSHOTS: Final = 50

#: Snapshots that are expired in one commit at least, so that a page rarely needs a second commit.
_MIN_EXPIRED: Final = 25


class Change(NamedTuple):
    """What a commit changes at once.

    :ivar append: rows to append; there may be none.
    :ivar properties: table properties to set.
    :ivar delete: which rows to delete before that.
    """

    append: pa.Table
    properties: dict[str, str]
    delete: BooleanExpression | None = None


class FeedTable:
    """A table of an Iceberg catalog with a schema of this package.

    :param name: namespace and table, with dots.
    :param schema: its columns.
    :param partition_by: the column whose days are its partitions.
    :raises InvalidName: the name has no namespace.
    """

    def __init__(self, catalog: IcebergCatalog, name: str, schema: pa.Schema, *, partition_by: str) -> None:
        check_table(name)
        self.catalog, self.name, self._schema, self._partition_by = catalog, name, schema, partition_by
        self._metrics = metrics_properties(schema)

    def find(self) -> Table | None:
        """Return the table as it is now; None if there is none.

        :raises UnusableTable: it lacks columns of this package, or they have other types.
        """
        with self.catalog.hide_secrets():
            return self._find()

    def _find(self) -> Table | None:
        for left in range(_MAX_FAILURES - 1, -1, -1):
            try:
                table = self.catalog.catalog.load_table(self.name)
            except NoSuchTableError:
                return None
            except FileNotFoundError:  # ten commits came between two reads of the catalog and the file
                if not left:
                    raise
            else:
                self._check(table.schema())
                return table
        raise AssertionError

    def load(self) -> Table:
        """Return the table as it is now.

        :raises UnusableTable: it does not exist, or is not as this package creates it.
        """
        table = self.find()
        if table is None:
            raise UnusableTable(f"the table {self.name} does not exist")
        return table

    def find_or_create(self) -> Table:
        """Return the table as it is now; create it if there is none.

        :raises UnusableTable: its namespace does not exist, or it is not as this package creates it.
        """
        if (table := self.find()) is not None:
            return table
        with self.catalog.hide_secrets():
            self._create()
        return self.load()

    def _create(self) -> None:
        schema = iceberg_schema(self._schema)
        source = schema.find_field(self._partition_by).field_id
        day = PartitionField(source, 1000, DayTransform(), f"{self._partition_by}_day")
        try:
            self.catalog.catalog.create_table(
                self.name, schema, partition_spec=PartitionSpec(day), properties=_PROPERTIES | self._metrics
            )
        except TableAlreadyExistsError:  # another run was first
            log.debug("The table %s was created at the same time", self.name)
        except NoSuchNamespaceError as error:
            namespace = self.name.rpartition(".")[0]
            raise UnusableTable(f"the namespace {namespace} does not exist in the catalog: create it first") from error

    def _check(self, schema: Schema) -> None:
        problems = list(schema_problems(schema, self._schema))
        if problems:
            raise UnusableTable(
                f"the table {self.name} is not as this package creates it: {'; '.join(problems)}. "
                "Name another table, or undo the change"
            )

    def commit(self, plan: Callable[[Table, str], Change]) -> Table:
        """Commit a change, whole or not at all; again from the fresh table if another commit came first.

        :param plan: returns the change of a table as it is now, given the commit's id; it may raise.
        :return: the table after it.
        :raises WarehouseBusy: other commits came first each time.
        """
        with self.catalog.hide_secrets():
            return self._commit(plan)

    def _commit(self, plan: Callable[[Table, str], Change]) -> Table:
        commit_id, failures = uuid.uuid4().hex, 0
        for attempt in range(_MAX_ATTEMPTS):
            if attempt:
                time.sleep(random.uniform(0.5, 1) * min(_MIN_BACKOFF * 2**attempt, _MAX_BACKOFF))  # noqa: S311
            table = self.load()
            if find_commit(table.metadata, commit_id):
                return table
            try:
                return _commit_once(table, self._with_metrics(table, plan(table, commit_id)), commit_id)
            except CommitFailedException:
                log.debug("Another commit to %s came first", self.name)
            except _InDoubt as error:
                failures += 1
                log.warning("A commit to %s failed, perhaps after it took effect; its state is read", self.name)
                if not self._is_applied_after(error.caused_by, commit_id) and failures == _MAX_FAILURES:
                    raise error.caused_by from None
        raise WarehouseBusy(f"other commits to the table {self.name} came first {_MAX_ATTEMPTS} times")

    def _with_metrics(self, table: Table, change: Change) -> Change:
        missing = {name: mode for name, mode in self._metrics.items() if name not in table.properties}
        return change._replace(properties=missing | change.properties)

    def _is_applied_after(self, error: Exception, commit_id: str) -> bool:
        try:
            return find_commit(self.load().metadata, commit_id) is not None
        except Exception:
            raise error from None  # it cannot be found out now: the next run reads the cursor

    def set_properties(self, properties: dict[str, str]) -> None:
        """Set properties without a snapshot; lose to any other commit."""
        try:
            with self.catalog.hide_secrets(), self.load().transaction() as transaction:
                transaction.set_properties(properties)
        except CommitFailedException:
            log.debug("Another commit to %s came first", self.name)

    def read(self, table: Table, where: BooleanExpression, *columns: str) -> pa.Table:
        """Return columns of the rows for which ``where`` is true, in no order."""
        with self.catalog.hide_secrets():
            return table.scan(row_filter=where, selected_fields=columns).to_arrow()

    def has_rows(self, table: Table, where: BooleanExpression) -> bool:
        """Return whether ``where`` is true for a row."""
        with self.catalog.hide_secrets():
            return bool(table.scan(row_filter=where, limit=1).to_arrow().num_rows)

    def expire_snapshots(self, table: Table, before: datetime) -> None:
        """Remove old snapshots from the metadata, if they are enough to be worth a commit. Never raises.

        :param before: snapshots since then are left to their readers.
        """
        old = expirable(table, before)
        if len(old) < _MIN_EXPIRED:
            return
        try:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        except CommitFailedException:
            log.debug("Another commit to %s came before its snapshots expired", self.name)
        except Exception as error:
            log.warning(
                "Could not expire snapshots of %s, which a later page repeats: %s", self.name, type(error).__name__
            )


class _InDoubt(Exception):
    def __init__(self, caused_by: Exception) -> None:
        super().__init__(str(caused_by))
        self.caused_by = caused_by


def _commit_once(table: Table, change: Change, commit_id: str) -> Table:
    transaction, summary = table.transaction(), {COMMIT: commit_id}
    transaction.set_properties(change.properties)  # first: some say how files are written
    if change.delete is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "did not match any records"
            transaction.delete(change.delete, snapshot_properties=summary)
    # Always, even without rows: commits without a snapshot do not exclude one another.
    transaction.append(change.append, snapshot_properties=summary)
    # Without these, pyiceberg neither repeats a lost commit on top of another one, whatever the table's properties
    # say, nor deletes files of a commit that a catalog reports as failed after it took effect.
    transaction._snapshot_producers = []
    try:
        return transaction.commit_transaction()
    except CommitFailedException:
        raise
    except Exception as error:
        raise _InDoubt(error) from error


def expirable(table: Table, before: datetime) -> list[int]:
    """Return the snapshots that may expire: not the newest ones, no head of a branch, and no tag."""
    heads = {reference.snapshot_id for reference in table.metadata.refs.values()}
    ordered = sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms)
    limit = before.timestamp() * 1000
    old = [each for each in ordered[:-_MIN_SNAPSHOTS] if each.timestamp_ms < limit]
    return [each.snapshot_id for each in old if each.snapshot_id not in heads]


def iceberg_schema(schema: pa.Schema) -> Schema:
    """Return the columns for a new table, with their comments."""
    return Schema(
        *(
            NestedField(
                number,
                field.name,
                _TYPES[field.type],
                required=not field.nullable,
                doc=(field.metadata or {}).get(b"comment", b"").decode(),
            )
            for number, field in enumerate(schema, 1)
        )
    )


def metrics_properties(schema: pa.Schema) -> dict[str, str]:
    """Return properties by which no bound of a text from outside is computed: pyiceberg fails for some texts.

    It shortens a bound and increments its last character, and nothing encodes what follows U+D7FF. The bounds of the
    account, by which rows are searched for, are whole.
    """
    texts = [field.name for field in schema if field.type in (pa.string(), pa.binary())]
    return {f"{_METRICS}{name}": "full" if name == "account" else "counts" for name in texts}


def schema_problems(found: Schema, expected: pa.Schema) -> list[str]:
    """Return how a table's columns differ from those that rows need; columns that were added may be NULL."""
    columns = {field.name: field for field in found.fields}
    problems = []
    for field in expected:
        column = columns.pop(field.name, None)
        if column is None:
            problems.append(f"the column {field.name} is missing")
        elif column.field_type != _TYPES[field.type]:
            problems.append(f"the column {field.name} is {column.field_type}, not {_TYPES[field.type]}")
        elif column.required and field.nullable:
            problems.append(f"the column {field.name} does not allow NULL")
    problems += [f"the column {name} is required" for name, column in columns.items() if column.required]
    return problems
