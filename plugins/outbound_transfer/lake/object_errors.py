"""Errors of the destination in object storage."""

from __future__ import annotations

from outbound_transfer.warehouse.errors import InvalidCursor, WarehouseError


class UnreliableStorage(WarehouseError):
    """The storage overwrites an object that it was told to create only.

    What to do: use a storage that can refuse to create an object that exists. Not retried.
    """


class InvalidObject(WarehouseError):
    """An object with the name of a page is not one of this feed.

    What to do: restore the object from a backup or a version of it; or move it away and run ``outbound-transfer feed
    rebuild-cursor``. Not retried; nothing was loaded.
    """


class StrayObjects(WarehouseError):
    """Pages exist that the chain of pages does not lead to. Nothing was loaded.

    What to do: run ``outbound-transfer feed rebuild-cursor``: it deletes what a reader left behind that a reset
    overtook. Not retried.
    """


class MissingPages(InvalidCursor):
    """Pages that were loaded are gone, so the cursor is not known. Nothing was loaded.

    What to do: restore the objects. If they were deleted on purpose, as by a lifecycle rule, run ``outbound-transfer
    feed reset --to N``, with the cursor to go on from. Not retried.
    """


class OtherFormat(WarehouseError):
    """The feed's pages are in another format than the one that is asked for. Nothing was loaded.

    What to do: set the format of the existing pages, or another ``path``. Not retried.
    """


class PagesNotRewritten(WarehouseError):
    """Rejected lines cannot be replaced: loaders do not read a page twice.

    What to do: run the ``feed reset`` that the message names.
    """
