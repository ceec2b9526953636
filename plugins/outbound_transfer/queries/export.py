"""Runs a query and writes its result: what a file of a delivery is made of."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from outbound_transfer.client.wording import pluralize
from outbound_transfer.queries.connection import query_result
from outbound_transfer.queries.errors import QueryError, ResultTooLong
from outbound_transfer.queries.file_formats import write_result
from outbound_transfer.queries.rows import Batch, Result

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.queries.spec import QuerySpec

#: Seconds between two lines of one query.
_LOG_INTERVAL: Final = 10.0


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
            logged = started
            for batch in batches:
                rows += len(batch[0])
                if self.max_rows is not None and rows > self.max_rows:
                    raise ResultTooLong(
                        f"the result has more than {pluralize(self.max_rows, 'row')} (max_rows): nothing is created"
                    )
                if time.monotonic() - logged >= _LOG_INTERVAL:
                    logged = time.monotonic()
                    self.log.info("%s: %s rows so far", query.file_name, f"{rows:,}")
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
