"""Errors of the destination in object storage."""

from __future__ import annotations

from outbound_transfer.warehouse.errors import InvalidCursor, WarehouseError


class UnreliableStorage(WarehouseError):
    """The storage overwrites an object that it was told to create only.

    What to do: use a storage that can refuse to create an object that exists. Not retried.
    """


class InvalidObject(InvalidCursor):
    """An object of a feed is not as this package writes it. Nothing was loaded.

    What to do: restore the object from a backup or a version of it; or run the ``feed reset`` that the message names.
    Not retried.
    """


class MissingPages(InvalidCursor):
    """Pages that were loaded are gone, so the cursor is not known. Nothing was loaded.

    What to do: restore the objects. If they were deleted on purpose, as by a lifecycle rule, run ``outbound-transfer
    feed reset --to N``, with the cursor to go on from. Not retried.
    """
