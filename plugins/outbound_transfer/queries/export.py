"""Runs a query and writes its result: what a file of a delivery is made of."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.queries.connection import query_result
from outbound_transfer.queries.errors import QueryError, ResultNotWritable, ResultTooLong
from outbound_transfer.queries.values import Batch, Result
from outbound_transfer.wording import pluralize

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.queries.spec import QuerySpec

#: What a format needs installed.
_PACKAGES: Final = {"parquet": "pyarrow", "xlsx": "xlsxwriter"}


@dataclass(frozen=True)
class QueryExport:
    """How the queries of one delivery are run and written.

    :ivar sql_conn_id: their connection.
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
        """Run a query, and write its result in bounded memory.

        :return: the number of rows.
        :raises QueryError: it fails, its result has more rows than allowed, or it cannot be written.
        :raises NotASqlConnection: the connection is not one of SQL.
        """
        self.log.info("%s: running the query on connection '%s'", query.file_name, self.sql_conn_id)
        started, rows = time.monotonic(), 0

        def count(batches: Iterable[Batch]) -> Iterator[Batch]:
            nonlocal rows
            for batch in batches:
                rows += len(batch[0])
                if self.max_rows is not None and rows > self.max_rows:
                    raise ResultTooLong(
                        f"the result has more than {pluralize(self.max_rows, 'row')} (max_rows): nothing is created"
                    )
                yield batch

        try:
            with query_result(
                self.sql_conn_id, query.sql, query.parameters, hook_params=self.hook_params, zone=self.zone
            ) as result:
                counted = Result(result.columns, count(result.batches))
                write_result(counted, query.file_format, file, escape_formulas=self.escape_formulas)
        except QueryError as error:
            raise type(error)(f"{query.file_name}: {error}") from None
        size, seconds = file.seek(0, 2), time.monotonic() - started
        self.log.info("%s: %s rows, %s bytes in %.1f s", query.file_name, f"{rows:,}", f"{size:,}", seconds)
        return rows


def write_result(result: Result, file_format: str, file: BinaryIO, *, escape_formulas: bool = True) -> None:
    """Write a result.

    :param escape_formulas: of CSV; see :func:`.formats.csv.write`.
    :raises InvalidDelivery: a package is missing.
    :raises ResultNotWritable: a value, or a column, has no exact form in the format.
    """
    counts = Counter(map(str.casefold, result.columns))
    repeated = next((name for name in result.columns if counts[name.casefold()] > 1), None)
    if file_format in ("jsonl", "parquet") and repeated is not None:
        raise ResultNotWritable(
            f"two columns are named {repeated!r:.100}, perhaps in upper and lower case, and readers of {file_format} "
            "cannot tell them apart: give each a name of its own with AS"
        )
    try:
        # What a format needs is imported only where it is written.
        module = import_module(f"outbound_transfer.queries.formats.{file_format}")
        options = {"escape_formulas": escape_formulas} if file_format == "csv" else {}
        module.write(result, file, **options)
    except ModuleNotFoundError as error:
        if error.name != _PACKAGES.get(file_format):
            raise
        raise InvalidDelivery(
            f"{file_format} needs a package that is not installed: pip install "
            f"'airflow-provider-outbound-transfer[{file_format}]'"
        ) from None
