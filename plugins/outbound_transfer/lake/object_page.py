"""A page as one Parquet object, with the cursor after it in the footer's key-value metadata."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from outbound_transfer.client.events import MAX_CURSOR
from outbound_transfer.warehouse.errors import InvalidCursor, SchemaTooNew

#: Version of the header. A newer version refuses an older package.
HEADER_VERSION: Final = 1

#: Key of the header in Parquet's key-value metadata.
HEADER_KEY: Final = "outbound_transfer"


class PageHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a page's object says of itself, and of all pages up to it; the defaults are those before the first page.

    :ivar events: number of events up to this page, like ``rejected``.
    :ivar loaded_at: of the newest page with events up to this one, like ``occurred_at``.
    """

    version: int = HEADER_VERSION
    account: str
    cursor_from: Annotated[int, msgspec.Meta(ge=0)] = 0
    cursor_to: Annotated[int, msgspec.Meta(le=MAX_CURSOR)] = 0
    has_more: bool | None = None
    polled_at: str | None = None
    events: int = 0
    rejected: int = 0
    loaded_at: str | None = None
    occurred_at: str | None = None


def encode_page(header: PageHeader, table: pa.Table) -> bytes:
    """Return a page's object."""
    sink = pa.BufferOutputStream()
    # Without the schema of Arrow, which has the columns' comments, the footer is a third of the size.
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({HEADER_KEY: msgspec.json.encode(header).decode()})
    return bytes(sink.getvalue().to_pybytes())


def read_header(content: bytes, path: str, account: str, cursor_from: int) -> PageHeader:
    """Return the header of the page at a path that was read with a cursor.

    :raises InvalidCursor: the object is not such a page.
    :raises SchemaTooNew: a newer version of this package wrote it.
    """
    try:
        text: bytes = pq.read_metadata(pa.BufferReader(content)).metadata[HEADER_KEY.encode()]
        version = msgspec.json.decode(text, type=dict).get("version")
        if isinstance(version, int) and version > HEADER_VERSION:
            raise SchemaTooNew(f"{path} was written by a newer version of this package")
        header = msgspec.json.decode(text, type=PageHeader)
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException, RecursionError) as error:
        raise _invalid(path, cursor_from, f"it is not Parquet of this package, or is damaged: {error}") from error
    if (header.account, header.cursor_from) != (account, cursor_from) or header.cursor_to <= cursor_from:
        raise _invalid(path, cursor_from, "its header is of another page or account: it was renamed or copied")
    return header


def _invalid(path: str, cursor_from: int, reason: str) -> InvalidCursor:
    return InvalidCursor(
        f"{path} is not a page of this feed: {reason}. Restore it; or run `feed reset --to {cursor_from}`, which "
        "deletes it and the pages after it, and the feed is read again from there"
    )
