"""Errors of the store. Texts of a database are shown as one line, as its other lines may quote a row."""

from __future__ import annotations

import re
from typing import Any, Final

from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.store.personal_data import ADDRESS

#: What databases say of a full disk.
_FULL: Final = re.compile("disk( is)? full|no space left", re.IGNORECASE)


def first_line(error: BaseException) -> str:
    """Return the first line of a database's message, without addresses: the others may quote a row."""
    return ADDRESS.sub("***", next(iter(str(error).strip().splitlines()), type(error).__name__))


def code_of(error: BaseException | None) -> Any:
    """Return a driver's SQLSTATE or number of an error; its text if the database has no codes."""
    driver: Any = getattr(error, "orig", None) or error
    return getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None) or next(iter(driver.args), "")


def words_of(error: BaseException | None) -> str:
    """Return class, code and first line of an error, by the driver's own if SQLAlchemy has wrapped it."""
    cause: Any = getattr(error, "orig", None) or error
    code, text = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None), first_line(cause)[:300]
    remedy = ". Make room on the disk of the database" if _FULL.search(text) else ""
    return f"{type(cause).__name__}{f' {code}' if code else ''}: {text}{remedy}"


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


class DeliveryKeyInUse(OutboundTransferError):
    """Another task delivers under this key at this time. A retry may succeed: it returns the same transfer.

    What to do: give the task retries, with a delay as long as the delivery takes.
    """


class WarehouseError(OutboundTransferError):
    """Base class of the errors of the feed's and the transfers' tables."""


class NotASqlConnection(WarehouseError):
    """The connection is not a SQL connection (its hook is not a ``DbApiHook``).

    What to do: name the connection of a SQL database, and install its provider. Not retried.
    """


class InvalidName(WarehouseError, ValueError):
    """The database cannot use a schema, a table prefix or an account's name unchanged.

    What to do: shorten ``table_prefix``, ``schema`` or ``account``. Not retried.
    """


class PageRefused(WarehouseError):
    """The database refuses a page, whatever its rows have in them. Nothing was loaded.

    What to do: mend what the message names (a permission, a constraint, a full disk). The next run loads the page.
    """


class TooManyRejectedLines(WarehouseError):
    """A page has more rejected lines than allowed. Nothing of it was loaded.

    What to do: inspect the feed; to store such lines raw, raise ``max_rejected``. Not retried.
    """


class MissingTables(WarehouseError):
    """The analysts' views read tables that were not created yet.

    What to do: run ``EventFeedToSqlOperator`` and ``TransfersToSqlOperator`` once, with the same ``table_prefix`` and
    ``schema``.
    """


class UnknownFeed(WarehouseError):
    """The tables have no cursor of the feed.

    What to do: pass ``--account`` with one of the names in the message, or omit it if there is only one account.
    """


class InvalidCursor(WarehouseError):
    """The stored cursor, or the one to set, is not a valid cursor. Nothing was loaded.

    What to do: run ``outbound-transfer feed rebuild-cursor``, or ``reset --to``: the cursor was changed from outside.
    Not retried.
    """


class CursorMoved(WarehouseError):
    """The cursor changed: another reader loaded the page, or a user reset it. Nothing was loaded.

    What to do: run one ingestion for each account (``max_active_runs=1``). The task stops and succeeds. After a
    command, see ``feed status``, and repeat it if it is still right.
    """


class KeyOfAnotherUser(WarehouseError):
    """The connection's key sees none of the transfers that the tables have for it. Nothing was stored.

    What to do: restore the key of the connection, or use a connection with another id for the other user. If the
    service has deleted the stored transfers, delete the connection's row in the table ``transfer_sync``. Not retried.
    """


class OtherAccount(WarehouseError):
    """The account's name is bound to another account than the connection's. Nothing was loaded.

    What to do: correct the connection, or set another ``account``. If the account has moved, do what the message says.
    Not retried.
    """


class WarehouseBusy(WarehouseError):
    """Other processes locked the database for too long; a retry may succeed.

    What to do: close the program that has the DuckDB file open. Readers open it briefly, with ``read_only=True``.
    """


class NotAnIcebergConnection(WarehouseError):
    """The connection is not one of Iceberg, or a package for it is missing.

    What to do: name a connection of the type Iceberg, and install the extra ``iceberg``. Not retried.
    """


class UnusableTable(WarehouseError):
    """A table is missing, is not as this package creates it, or has another owner.

    What to do: undo the change that the message lists, or name another table; create a namespace that does not exist;
    repeat the command as the owner. Not retried.
    """
