"""Errors of the destination in object storage."""

from __future__ import annotations

from outbound_transfer.warehouse.errors import InvalidCursor, WarehouseError


class UnreliableStorage(WarehouseError):
    """The storage overwrites an object that it was told to create only."""


class InvalidObject(WarehouseError):
    """An object with the name of a page is not one of this feed."""


class StrayObjects(WarehouseError):
    """Pages exist that the chain of pages does not lead to. Nothing was loaded."""


class MissingPages(InvalidCursor):
    """Pages that were loaded are gone, so the cursor is not known. Nothing was loaded."""


class OtherFormat(WarehouseError):
    """The feed's pages are in another format than the one that is asked for. Nothing was loaded."""


class PagesNotRewritten(WarehouseError):
    """Rejected lines cannot be replaced: loaders do not read a page twice."""
