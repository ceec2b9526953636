"""Runs a query and writes its result: what a file of a delivery is made of."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.queries.connection import Worded, open_connection, read_result
from outbound_transfer.queries.errors import QueryError, ResultNotWritable, ResultTooLong
from outbound_transfer.queries.exact import ExactQuery, is_exact
from outbound_transfer.queries.formats import csv
from outbound_transfer.queries.values import Batch, Result, check_names, to_text
from outbound_transfer.wording import pluralize

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.queries.spec import QuerySpec


@dataclass(frozen=True)
class QueryExport:
    """How the queries of one delivery are run and written.

    :ivar max_rows: of each result; None for any number.
    :ivar zone: what timestamps with a zone are converted to.
    :ivar escape_formulas: of CSV; see :func:`.formats.csv.write`.
    """

    sql_conn_id: str
    log: Logger
    hook_params: Mapping[str, Any] | None = None
    max_rows: int | None = None
    zone: tzinfo = UTC
    escape_formulas: bool = True

    def write(self, query: QuerySpec, file: BinaryIO) -> int:
        """Run a query, write its result in bounded memory, and return the number of rows.

        :param file: an empty one, with a descriptor.
        :raises QueryError: it fails, its result has more rows than allowed, or it cannot be written.
        :raises NotASqlConnection: the connection is not one of SQL.
        """
        self.log.info("%s: running the query on connection '%s'", query.file_name, self.sql_conn_id)
        started = time.monotonic()
        try:
            with open_connection(self.sql_conn_id, self.hook_params) as (connection, worded):
                rows = self._write(connection, worded, query, file)
        except QueryError as error:
            raise type(error)(f"{query.file_name}: {error}") from None
        size, seconds = file.seek(0, 2), time.monotonic() - started
        self.log.info("%s: %s rows, %s bytes in %.1f s", query.file_name, f"{rows:,}", f"{size:,}", seconds)
        return rows

    def _write(self, connection: Any, worded: Worded, query: QuerySpec, file: BinaryIO) -> int:
        if query.file_format == "csv" and is_exact(connection):
            limit = None if self.max_rows is None else self.max_rows + 1
            with worded("refused the query"):
                exact = ExactQuery(connection, query.sql, query.parameters, self.zone)
                if exact.can_copy:
                    return self._checked(exact.copy(file, limit=limit, escape_formulas=self.escape_formulas))
        rows = 0

        def counted(batches: Iterable[Batch]) -> Iterator[Batch]:
            nonlocal rows
            for batch in batches:
                rows = self._checked(rows + len(batch[0]))
                yield batch

        with read_result(connection, worded, query.sql, query.parameters, self.zone) as result:
            counting = Result(result.columns, counted(result.batches))
            write_result(counting, query.file_format, file, escape_formulas=self.escape_formulas)
        return rows

    def _checked(self, rows: int) -> int:
        if self.max_rows is not None and rows > self.max_rows:
            allowed = pluralize(self.max_rows, "row")
            raise ResultTooLong(f"the result has more than {allowed} (max_rows): nothing is created")
        return rows


def write_result(result: Result, file_format: str, file: BinaryIO, *, escape_formulas: bool = True) -> None:
    """Write a result.

    :raises InvalidDelivery: a package is missing.
    :raises ResultNotWritable: a value or a column has no exact form in the format.
    """
    check_names(result.columns, unique=True)
    try:
        if file_format == "jsonl":
            _write_lines(result, file)
        elif file_format == "csv":
            csv.write(result, file, escape_formulas=escape_formulas)
        else:  # whose library is imported only where it is used
            import_module(f"outbound_transfer.queries.formats.{file_format}").write(result, file)
    except UnicodeEncodeError as error:  # without its text
        raise ResultNotWritable(f"a text cannot be encoded as UTF-8: {error.reason}") from None
    except ModuleNotFoundError as error:
        if error.name not in ("pyarrow", "xlsxwriter"):
            raise
        raise InvalidDelivery(
            f"{file_format} needs a package that is not installed: pip install "
            f"'airflow-provider-outbound-transfer[{file_format}]'"
        ) from None


def _write_lines(result: Result, file: BinaryIO) -> None:
    """Write a result as JSON Lines: one object a row, with the text of what JSON has no type for, or rounds."""
    encoder = msgspec.json.Encoder()
    for batch in result.batches:
        columns = [
            [to_text(value) if isinstance(value, Decimal | datetime) else value for value in values] for values in batch
        ]
        rows = zip(*columns, strict=True)
        file.write(encoder.encode_lines([dict(zip(result.columns, row, strict=True)) for row in rows]))
