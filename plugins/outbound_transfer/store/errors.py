"""Errors of the store."""

from __future__ import annotations

from typing import Any

from outbound_transfer.client.errors import OutboundTransferError


def first_line(error: BaseException) -> str:
    """Return the first line of a database's message: the others may quote a row."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def words_of(error: BaseException | None) -> str:
    """Return class, SQLSTATE and first line of an error, by the driver's own if SQLAlchemy has wrapped it."""
    cause: Any = getattr(error, "orig", None) or error
    code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return f"{type(cause).__name__}{f' {code}' if code else ''}: {first_line(cause)[:300]}"


class UnsupportedDatabase(OutboundTransferError):
    """The connection leads to a database, or has a driver, that the provider does not store this in.

    What to do: name a connection of a database in the message. Not retried; nothing was created.
    """


class UnusableDatabase(OutboundTransferError):
    """The tables cannot be created.

    What to do: create the schema, or grant the role the right to create tables. Nothing was created.
    """


class NoDeliveriesTable(OutboundTransferError):
    """No database is configured for the table in which a delivery remembers what it has sent.

    What to do: set ``[outbound_transfer] deliveries_conn_id``. Not retried; nothing was created.
    """


class DeliveriesUnavailable(OutboundTransferError):
    """The database of the table of deliveries does not respond, or has no room. A retry may succeed.

    What to do: check the database that the message names. Retried.
    """


class DatabaseFailed(OutboundTransferError):
    """The database of the feed's or the transfers' tables failed. A retry may succeed.

    What to do: check the database by the message, which has nothing of the row. Retried.
    """
