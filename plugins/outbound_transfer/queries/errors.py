"""Errors of queries whose results are delivered. None of them leaves anything at the service."""

from __future__ import annotations

from collections.abc import Mapping

from outbound_transfer.client.errors import OutboundTransferError


def describe_error(error: Exception) -> tuple[str, str]:
    """Return the class and code of a driver's error, and the first line of its text, as other lines may quote rows."""
    code, text = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None), str(error)
    match error.args:
        case (int(number), str(message)):  # of MySQL
            code, text = number, message
        case (Mapping() as fields, *_):  # of Redshift; its field D is the DETAIL
            code, text = fields.get("C"), str(fields.get("M", ""))
    return f"{type(error).__name__} {code or ''}".strip(), text.strip().partition("\n")[0]


class QueryError(OutboundTransferError):
    """The result of a query cannot be delivered."""


class QueryFailed(QueryError):
    """The database refused the connection or the query, or stopped while its rows were read.

    What to do: correct the query, or do what the database says. If another process has the DuckDB file open, run the
    query after it. Retried.
    """


class ResultEmpty(QueryError):
    """A query returned no rows, and ``on_empty`` is ``fail``.

    What to do: set ``on_empty`` to ``skip`` or ``send`` if an empty result is fine. Retried.
    """


class ResultTooLong(QueryError):
    """A query returned more rows than allowed.

    What to do: raise ``max_rows``, or narrow the query. Retried.
    """


class ResultNotWritable(QueryError):
    """A value or a column has no exact form in the file's format.

    What to do: give same-named columns an alias (``AS``), convert the value in the query (``CAST``), or choose another
    format. Retried.
    """
