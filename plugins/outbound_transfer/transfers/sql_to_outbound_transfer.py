"""Deliver query results: from a database to recipients in one task."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, Unpack

from outbound_transfer.airflow_compat.names import AirflowSkipException
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.files.content import ContentWriter
from outbound_transfer.operators.arguments import (
    DELIVERY_CHECKS,
    MORE_FILES_CHECKS,
    TRANSFER_CHECKS,
    Check,
    check_text,
    choice,
    to_whole_number,
)
from outbound_transfer.operators.base import DEFAULT_CONN_ID, DEFAULT_DEFERRABLE
from outbound_transfer.operators.transfer import DeliverFilesOperator, delivery_arguments
from outbound_transfer.queries.errors import ResultEmpty
from outbound_transfer.queries.spec import QuerySpec, format_of, parse_queries, parse_zone

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.files.content import Spool
    from outbound_transfer.files.find import FileSpec
    from outbound_transfer.files.sources import Source
    from outbound_transfer.operators.arguments import Files, Recipients
    from outbound_transfer.operators.task_arguments import TaskArguments
    from outbound_transfer.queries.export import QueryExport


def _check_one_form(sql: Any, queries: Any) -> None:
    if (sql is None) == (queries is None):
        raise InvalidDelivery("give either sql and file_name, or queries")


def _check_file_name(name: Any, file_format: Any) -> None:
    if name is not None:
        format_of(check_text("file_name", name), file_format)


QUERY_CHECKS: Final = (
    Check(("sql", "queries"), _check_one_form),
    Check(("queries", "file_format"), lambda queries, kind: queries is None or parse_queries(queries, kind)),
    Check(("file_name", "file_format"), _check_file_name),
    Check(("max_rows",), lambda number: number is None or to_whole_number("max_rows", number)),
    Check(("timezone",), lambda zone: parse_zone(check_text("timezone", zone))),
    choice("csv_formulas", "escape", "keep"),
    choice("on_empty", "fail", "skip", "send"),
)


class SqlToOutboundTransferOperator(DeliverFilesOperator):
    """Run queries, and deliver each result as a file: CSV, JSON Lines, Parquet or XLSX.

    Queries run before anything is created at the service. Rows are read with a server-side cursor if the driver
    has one, and written to a temporary file, so that memory does not grow with their number. A retry before the send
    runs the queries again, in a new draft; after the send, only a clear runs them again, and a result that differs from
    what was sent is refused. See :class:`.DeliverFilesOperator` for the other arguments.

    :param sql_conn_id: any connection whose hook is a ``DbApiHook``.
    :param subject: see :class:`.CreateTransferOperator`.
    :param recipients: see :class:`.CreateTransferOperator`.
    :param sql: the query, or the name of a ``.sql`` file with it.
    :param file_name: the name of the file with the result of ``sql``.
    :param parameters: parameters of ``sql``, in the style of the connection's driver.
    :param queries: instead of ``sql``: a list of mappings with ``sql`` and ``file_name``, and optionally ``parameters``
        and ``file_format``.
    :param file_format: ``csv``, ``jsonl``, ``parquet`` or ``xlsx``. By default, each file name's suffix decides.
    :param sql_hook_params: arguments for the connection's hook.
    :param on_empty: what to do about a result without rows: ``fail``; ``skip`` it, and the task if there is no other;
        or ``send`` it, with its header. Patterns in ``files`` that match nothing ``fail``, or are skipped likewise.
    :param max_rows: maximum number of rows in each result; with more, the task fails and nothing is created.
    :param timezone: zone to which timestamps with a time zone are converted. Those without one stay as they are.
    :param csv_formulas: ``escape`` puts an apostrophe before a string that a spreadsheet would read as a formula, such
        as ``=…`` or ``@…``; ``keep`` leaves it unchanged. Numbers are never changed.
    :param files: additional files; see :class:`.AttachFilesOperator`.
    :return: as :class:`.DeliverFilesOperator` returns it.
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
    template_fields_renderers = {"sql": "sql", "parameters": "json", "queries": "json"}  # noqa: RUF012  # as in Airflow
    checks = (*TRANSFER_CHECKS, *MORE_FILES_CHECKS, *QUERY_CHECKS, *DELIVERY_CHECKS)

    _row_counts: dict[str, int]

    def __init__(
        self,
        *,
        sql_conn_id: str,
        subject: str,
        recipients: Recipients,
        sql: str | None = None,
        file_name: str | None = None,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        queries: Sequence[Mapping[str, Any]] | XComArg | str | None = None,
        file_format: Literal["csv", "jsonl", "parquet", "xlsx"] | str | None = None,
        sql_hook_params: dict[str, Any] | None = None,
        max_rows: int | None = None,
        timezone: str = "UTC",
        csv_formulas: Literal["escape", "keep"] | str = "escape",
        files: Files | None = None,
        message: str | None = None,
        security: str | None = None,
        security_question: str | None = None,
        security_answer: str | None = None,
        archive: str | None = None,
        checksums: str | None = None,
        on_empty: str = "fail",
        max_parallel_uploads: int = 4,
        delivery_key: str | None = None,
        send: bool = True,
        slot_timeout: timedelta = timedelta(hours=1),
        wait: bool = False,
        poke_interval: timedelta = timedelta(minutes=1),
        timeout: timedelta | None = None,
        on_expired: str = "fail",
        on_canceled: str = "fail",
        accept_partial: bool = False,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = DEFAULT_DEFERRABLE,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        if queries is not None and sql == (kwargs.get("default_args") or {}).get("sql"):
            sql = None  # meant for the Dag's other queries
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
        super().__init__(**delivery_arguments(locals()), **kwargs)

    def before_rendering(self, fields: Collection[str]) -> None:
        if "sql" in fields:
            self.sql = self._read_template(self.sql)
        if "queries" in fields and isinstance(self.queries, list | tuple):
            self.queries = [
                {**query, "sql": self._read_template(query.get("sql"))} if isinstance(query, Mapping) else query
                for query in self.queries
            ]
        super().before_rendering(fields)

    def _read_template(self, sql: Any) -> Any:
        """Return the content of a ``.sql`` file of this name; any other value as it is.

        Airflow's ``template_ext`` would read the subject, a file's name and its path in the same way.
        """
        if not isinstance(sql, str) or not sql.endswith(".sql"):
            return sql
        templates = self.get_template_env()
        assert templates.loader is not None, "Airflow gives it the Dag's folder and template_searchpath"
        return templates.loader.get_source(templates, sql)[0]

    def find_sources(
        self, spool: Spool, gone: list[OutboundTransferError] | None, results: Sequence[FileSpec] = ()
    ) -> list[Source]:
        self._row_counts, export = {}, self._export()
        one = {"sql": self.sql, "file_name": self.file_name, "parameters": self.parameters}
        queries = parse_queries([one] if self.queries is None else self.queries, self.file_format)
        contents = {query.file_name: ContentWriter(partial(self._write, export, query)) for query in queries}
        results = [*results, *({"name": name, "content": content} for name, content in contents.items())]
        sources = super().find_sources(spool, gone, results)
        if self.on_empty == "send":
            return sources
        empty = [name for name, count in self._row_counts.items() if not count]
        # The sent file has rows, so the comparison reports that an empty result differs.
        if empty and gone is None and (self.on_empty == "fail" or len(empty) == len(self._row_counts)):
            reason = f"{', '.join(empty)}: the query on connection '{self.sql_conn_id}' returned no rows"
            if self.on_empty == "skip":
                raise AirflowSkipException(reason)
            raise ResultEmpty(reason)
        return [source for source in sources if source.name not in empty]

    def _write(self, export: QueryExport, query: QuerySpec, file: BinaryIO) -> None:
        self._row_counts[query.file_name] = export.write(query, file)

    def _export(self) -> QueryExport:
        from outbound_transfer.queries.export import QueryExport

        return QueryExport(
            self.sql_conn_id,
            self.log,
            self.sql_hook_params,
            None if self.max_rows is None else int(self.max_rows),
            parse_zone(self.timezone),
            escape_formulas=self.csv_formulas == "escape",
        )
