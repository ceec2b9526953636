"""Errors of queries whose results are delivered. Nothing was created at the service for any of them."""

from __future__ import annotations

from outbound_transfer.protocol.errors import OutboundTransferError


class QueryError(OutboundTransferError):
    """The result of a query cannot be delivered."""


class QueryFailed(QueryError):
    """The database refused the connection or the query, or stopped while its rows were read."""


class ResultEmpty(QueryError):
    """A query returned no row, and an empty file is not wanted."""


class ResultTooLong(QueryError):
    """A query returned more rows than allowed."""


class ResultNotWritable(QueryError):
    """A value or a column has no exact form in the file's format."""
