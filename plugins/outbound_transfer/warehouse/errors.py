"""Errors of the warehouse. Errors of the database itself are translated for the memory of deliveries only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbound_transfer.protocol.errors import OutboundTransferError

if TYPE_CHECKING:
    from outbound_transfer.protocol.events import Page


class WarehouseError(OutboundTransferError):
    """Base class of the errors here."""


class NotASqlConnection(WarehouseError):
    """The connection is not a SQL connection (its hook is not a ``DbApiHook``)."""


class UnsupportedWarehouse(WarehouseError):
    """The database cannot keep the rows and the cursor together, or changes what it is given."""


class InvalidName(WarehouseError, ValueError):
    """The database cannot use a schema, a table prefix or an account's name unchanged."""


class RowsRefused(WarehouseError):
    """Rows of a page are refused, or have the ids of other events. Nothing was loaded.

    :ivar page: the same page as it can be loaded: these events are stored raw, or are rejected lines.
    """

    def __init__(self, message: str, page: Page) -> None:
        super().__init__(message)
        self.page = page


class PageRefused(WarehouseError):
    """The database refuses a page, whatever its rows have in them. Nothing was loaded."""


class TooManyRejectedLines(WarehouseError):
    """A page has more rejected lines than allowed. Nothing of it was loaded."""


class MissingTables(WarehouseError):
    """The analysts' views read tables that were not created yet."""


class UnknownFeed(WarehouseError):
    """The tables have no cursor of the feed."""


class InvalidCursor(WarehouseError):
    """The stored cursor, or the one to set, is not a valid cursor."""


class CursorMoved(WarehouseError):
    """The cursor changed: another reader loaded the page, or a user reset it.

    Nothing was loaded.
    """


class DuplicateRow(Exception):
    """A row that was expected to be new is in its table, or occurs twice. The transaction cannot continue.

    Raised and caught within the event store.
    """


class KeyOfAnotherUser(WarehouseError):
    """The connection's key sees none of the transfers that the tables have for it. Nothing was stored."""


class OtherAccount(WarehouseError):
    """The connection leads to another account than the one that the name of the account is bound to.

    Nothing was loaded.
    """


class WarehouseBusy(WarehouseError):
    """Other processes locked the database for too long; a retry may succeed."""


class SchemaTooNew(WarehouseError):
    """The tables were created by a newer version of this package."""


class UnreliableTable(WarehouseError):
    """The database does not return the row of a delivery's memory as it was written."""


class NoMemoryTable(WarehouseError):
    """No database is configured for the table that a delivery needs to remember what it has sent."""


class MemoryUnavailable(WarehouseError):
    """The database of the memory of deliveries does not respond, or has no room. A retry may succeed."""


class NotAnIcebergConnection(WarehouseError):
    """The connection is not one of Iceberg, or a package for it is missing."""


class UnusableTable(WarehouseError):
    """A table of the lake is missing, or is not as this package creates it."""


class DeliveryKeyInUse(OutboundTransferError):
    """Another task delivers under this key at this time. A retry may succeed: it returns the same transfer."""
