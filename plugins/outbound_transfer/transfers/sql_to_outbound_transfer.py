"""Deliver the results of queries: from a database to people in one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

from outbound_transfer.airflow_compat.names import AirflowSkipException
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.queries.errors import ResultEmpty
from outbound_transfer.tasks.arguments import is_fixed, require_choice, to_whole_number
from outbound_transfer.tasks.errors import fail_without_retry_on_warehouse_errors

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.files.content import Spool
    from outbound_transfer.files.sources import ParsedSpec, Source
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.queries.export import QueryExport
    from outbound_transfer.queries.spec import QuerySpec

_FORMULAS: Final = ("escape", "keep")


class SqlToOutboundTransferOperator(DeliverFilesOperator):
    """Run queries, and deliver each result as a file: CSV, JSON Lines, Parquet or XLSX.

    Queries run before anything is created at the service. Rows are read with a cursor of the server where the driver
    has one, and written to a temporary file, so that memory does not grow with their number. A retry before
    the send runs the queries again, in a new draft; after the send, only a clear runs them again, and a result that
    differs from what was sent is refused. See :class:`.DeliverFilesOperator` for the other arguments.

    :param sql_conn_id: any connection whose hook is a ``DbApiHook``.
    :param sql: one SELECT, or the name of a ``.sql`` file with it.
    :param file_name: the name of the file that the result of ``sql`` becomes.
    :param parameters: of ``sql``, in the style of the connection's driver.
    :param queries: instead of ``sql``: a list of mappings with ``sql`` and ``file_name``, and optionally ``parameters``
        and ``file_format``.
    :param file_format: ``csv``, ``jsonl``, ``parquet`` or ``xlsx``. By default, the suffix of each file name says it.
    :param sql_hook_params: arguments of the connection's hook.
    :param on_empty: what to do about a result without rows: ``fail``; ``skip`` it, and the task if there is no other;
        or ``send`` it, with its header. Patterns in ``files`` that match nothing ``fail``, or are skipped likewise.
    :param max_rows: of each result; with more, the task fails and nothing is created.
    :param timezone: what timestamps with a zone are converted to. Those without one stay as they are.
    :param csv_formulas: ``escape`` puts an apostrophe before a text that a spreadsheet would take for a formula, as
        ``=…`` or ``@…``; ``keep`` leaves it. Numbers are never changed.
    :param files: further files; see :class:`.AttachFilesOperator`.
    """

    template_fields: Sequence[str] = (
        *DeliverFilesOperator.template_fields,
        "sql_conn_id",
        "sql",
        "file_name",
        "parameters",
        "queries",
        "file_format",
        "max_rows",
        "timezone",
        "csv_formulas",
    )
    template_ext: Sequence[str] = (".sql",)
    needs_files = False
    on_empty_choices = (*DeliverFilesOperator.on_empty_choices, "send")
    _row_counts: dict[str, int]

    template_fields_renderers = {"sql": "sql", "parameters": "json", "queries": "json"}  # noqa: RUF012  # as in Airflow

    def __init__(
        self,
        *,
        sql_conn_id: str,
        sql: str | None = None,
        file_name: str | None = None,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        queries: Any = None,
        file_format: Literal["csv", "jsonl", "parquet", "xlsx"] | str | None = None,
        sql_hook_params: dict[str, Any] | None = None,
        max_rows: int | str | None = None,
        timezone: str = "UTC",
        csv_formulas: Literal["escape", "keep"] | str = "escape",
        files: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(files=files, **kwargs)
        self.sql_conn_id = sql_conn_id
        self.sql = sql
        self.file_name = file_name
        self.parameters = parameters
        self.queries = queries
        self.file_format = file_format
        self.sql_hook_params = sql_hook_params
        self.max_rows = max_rows
        self.timezone = timezone
        self.csv_formulas = csv_formulas
        self._check_known_queries()

    def _check_known_queries(self) -> None:
        """:raises InvalidDelivery: the task could only fail."""
        from outbound_transfer.queries.spec import parse_queries, parse_zone

        if self.is_known("csv_formulas"):
            require_choice("csv_formulas", self.csv_formulas, _FORMULAS)
        if self.is_known("timezone"):
            parse_zone(self.timezone)
        if self.max_rows is not None and self.is_known("max_rows"):
            to_whole_number(self.max_rows, "max_rows")
        queries = self._listed_queries() if self.is_known() else ()
        for query in queries if isinstance(queries, list | tuple) else ():
            if isinstance(query, Mapping) and is_fixed(
                [query.get("file_name"), query.get("file_format"), self.file_format]
            ):
                parse_queries([{**query, "parameters": None}], self.file_format)

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        with fail_without_retry_on_warehouse_errors():
            return super().run_task(hook, context)

    def file_specs(self) -> list[ParsedSpec]:
        from outbound_transfer.files.content import ContentWriter
        from outbound_transfer.files.sources import parse_files

        export = self._export()
        results = [
            {"name": query.file_name, "content": ContentWriter(partial(self._write, export, query))}
            for query in self._parse_queries()
        ]
        return [*parse_files(results), *super().file_specs()]

    def find_sources(
        self, specs: Sequence[ParsedSpec], spool: Spool, gone: list[OutboundTransferError] | None
    ) -> list[Source]:
        self._row_counts = {}
        sources = super().find_sources(specs, spool, gone)
        if self.on_empty == "send":
            return sources
        empty = [name for name, count in self._row_counts.items() if not count]
        # What was sent has rows: a comparison with nothing says that it differs.
        if empty and gone is None and (self.on_empty == "fail" or len(empty) == len(self._row_counts)):
            reason = f"{', '.join(empty)}: the query on connection '{self.sql_conn_id}' returned no row"
            if self.on_empty == "skip":
                raise AirflowSkipException(reason)
            raise ResultEmpty(reason)
        return [source for source in sources if source.name not in empty]

    def _write(self, export: QueryExport, query: QuerySpec, file: BinaryIO) -> None:
        self._row_counts[query.file_name] = export.write(query, file)

    def _parse_queries(self) -> list[QuerySpec]:
        from outbound_transfer.queries.spec import parse_queries

        return parse_queries(self._listed_queries(), self.file_format)

    def _listed_queries(self) -> Any:
        if (self.sql is None) == (self.queries is None):
            raise InvalidDelivery("give either sql and file_name, or queries")
        one = {"sql": self.sql, "file_name": self.file_name, "parameters": self.parameters}
        return [one] if self.queries is None else self.queries

    def _export(self) -> QueryExport:
        from outbound_transfer.queries.export import QueryExport
        from outbound_transfer.queries.spec import parse_zone

        require_choice("csv_formulas", self.csv_formulas, _FORMULAS)
        return QueryExport(
            self.sql_conn_id,
            self.log,
            self.sql_hook_params,
            None if self.max_rows is None else to_whole_number(self.max_rows, "max_rows"),
            parse_zone(self.timezone),
            escape_formulas=self.csv_formulas == "escape",
        )
