"""Errors of the warehouse. Errors of the database itself are translated for the memory of deliveries only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbound_transfer.client.errors import OutboundTransferError

if TYPE_CHECKING:
    from outbound_transfer.client.events import Page


class WarehouseError(OutboundTransferError):
    """Base class of the errors here."""


class NotASqlConnection(WarehouseError):
    """The connection is not a SQL connection (its hook is not a ``DbApiHook``).

    What to do: name the connection of a SQL database, and install its provider. Not retried.
    """


class InvalidName(WarehouseError, ValueError):
    """The database cannot use a schema, a table prefix or an account's name unchanged.

    What to do: shorten ``table_prefix``, ``schema`` or ``account``. Not retried.
    """


class RowsRefused(WarehouseError):
    """Rows of a page are refused, or have the ids of other events. Nothing was loaded.

    What to do: see ``reason`` in the rejected lines; fix the database, then run ``outbound-transfer feed reset`` to the
    least ``cursor_from`` of them. Of events with the ids of others, compare both: the service has changed events, or
    the feed was that of another account; ``feed verify`` counts them. A warning of an ingestion, which goes on.

    :ivar page: the same page as it can be loaded: these events are rejected lines.
    """

    def __init__(self, message: str, page: Page) -> None:
        super().__init__(message)
        self.page = page


class PageRefused(WarehouseError):
    """The database refuses a page, whatever its rows have in them. Nothing was loaded.

    What to do: mend what the message names (a permission, a constraint, a full disk). The page stays in the feed, and
    the next run loads it.
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
    """The cursor changed: another reader loaded the page, or a user reset it.

    Nothing was loaded.

    What to do: run one ingestion for each account (``max_active_runs=1``). The task stops and succeeds. After a
    command, see ``feed status``, and repeat it if it is still right.
    """


class DuplicateRow(Exception):
    """Another session has created the row that this one meant to. Caught within the warehouse."""


class KeyOfAnotherUser(WarehouseError):
    """The connection's key sees none of the transfers that the tables have for it. Nothing was stored.

    What to do: restore the key of the connection, or use a connection with another id for the other user. If the
    service has deleted the stored transfers, delete the connection's row in the table ``transfer_sync``. Not retried.
    """


class OtherAccount(WarehouseError):
    """The connection leads to another account than the one that the name of the account is bound to.

    Nothing was loaded.

    What to do: correct the connection, or set another ``account``. If the account has moved to another address, do what
    the message says. Not retried.
    """


class WarehouseBusy(WarehouseError):
    """Other processes locked the database for too long; a retry may succeed.

    What to do: close the program that has the DuckDB file open; readers open it with ``read_only=True``, and not for
    long.
    """


class SchemaTooNew(WarehouseError):
    """The tables were created by a newer version of this package.

    What to do: install the version of this package that made the tables, or a later one. Not retried.
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


class DeliveryKeyInUse(OutboundTransferError):
    """Another task delivers under this key at this time. A retry may succeed: it returns the same transfer.

    What to do: give the task retries, with a delay as long as the delivery takes.
    """
