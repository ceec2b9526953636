"""What can go wrong in the warehouse on purpose; the database's own errors pass as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbound_transfer.protocol.errors import OutboundTransferError

if TYPE_CHECKING:
    from outbound_transfer.protocol.feed import Page


class WarehouseError(OutboundTransferError):
    """Base class of the errors here."""


class UnsupportedWarehouse(WarehouseError):
    """The connection leads to no SQL database."""


class InvalidName(WarehouseError, ValueError):
    """A schema or table prefix that the database could not keep as it is."""


class RowsRefused(WarehouseError):
    """The database refuses rows of a page. Nothing was landed.

    :ivar page: the same page as the database takes it: events that it refuses are kept raw, or are rejected lines.
    """

    def __init__(self, message: str, page: Page) -> None:
        super().__init__(message)
        self.page = page


class UnknownFeed(WarehouseError):
    """The tables hold no such feed."""


class InvalidCursor(WarehouseError):
    """The cursor's row holds what the feed could not be asked with."""


class CursorMoved(WarehouseError):
    """The cursor is not where this reader left it: another reader landed the page, or someone reset it.

    Nothing was landed.
    """


class KnownRow(Exception):
    """A row that was to be new is in its table, or comes twice: nothing was added, and the transaction is lost.

    Caught where a page is landed; no caller sees it.
    """


class WarehouseBusy(WarehouseError):
    """Other processes had the database to themselves for too long; a retry may well succeed."""


class NewerTables(WarehouseError):
    """The tables were made by a newer version of this package."""
