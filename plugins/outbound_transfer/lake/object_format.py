"""Formats of a page's object, and the header in it, which is read without the rows."""

from __future__ import annotations

import base64
import gzip
import io
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from outbound_transfer.lake.object_errors import InvalidObject
from outbound_transfer.protocol.events import MAX_CURSOR

#: Version of the header. A newer version refuses an older package.
HEADER_VERSION: Final = 1

#: Key of the header in Parquet's key-value metadata.
HEADER_KEY: Final = "outbound_transfer"

#: Bytes that are read for the header; it takes less than half of them unless the account's name is long.
_HEADER_BYTES: Final = 8_192

#: Maximum size of Parquet's footer.
_MAX_FOOTER: Final = 1_000_000

#: Reads bytes of an object, from a start (the last bytes if it is negative) to an end; None if there is no object.
Read: TypeAlias = Callable[[int | None, int | None], bytes | None]

_Cursor: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_CURSOR)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Totals(msgspec.Struct, frozen=True):
    """Sums and maxima over the chain up to a page, so that its last page has all that is asked of the feed.

    :ivar greatest_excess: how far a page's cursor was beyond its lines.
    :ivar loaded_at: of the newest page with events, like ``occurred_at``.
    """

    events: _Count = 0
    rejected: _Count = 0
    greatest_excess: int = 0
    loaded_at: str | None = None
    occurred_at: str | None = None


class PageHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a page's object says of itself.

    :ivar previous: ``cursor_from`` of the page before; None for the first.
    :ivar action: ``poll``, or the command that put the page.
    :ivar token: of the process that put it: recognizes its own object after a response that was lost.
    """

    version: int = HEADER_VERSION
    account: str
    cursor_from: _Cursor
    cursor_to: _Cursor
    previous: _Cursor | None
    has_more: bool
    action: str
    events: _Count
    rejected: _Count
    excess: int
    polled_at: str
    token: str
    totals: Totals


class StoredRow(msgspec.Struct):
    """The columns of a row that verification and the replay of rejected lines need."""

    event_id: str | None
    type: str | None
    timestamp: str | None
    data: str | None
    extra_fields: str | None
    raw: str | None
    rejected_line: bytes | None
    cursor_from: int
    line_number: int


class ObjectFormat(ABC):
    """A format of objects."""

    #: How the objects' names finish.
    suffix: ClassVar[str]

    @abstractmethod
    def encode(self, table: pa.Table, header: PageHeader) -> bytes:
        """Return a page's object."""

    @abstractmethod
    def read_header(self, read: Read) -> bytes | None:
        """Return the header as JSON; None if there is no object.

        :raises InvalidObject: the object has no header.
        """

    @abstractmethod
    def read_rows(self, content: bytes) -> list[StoredRow]:
        """Return the rows of a whole object.

        :raises Exception: it is cut off or damaged.
        """


class Parquet(ObjectFormat):
    """Parquet, the header in the footer's key-value metadata."""

    suffix = ".parquet"

    def encode(self, table: pa.Table, header: PageHeader) -> bytes:
        sink = pa.BufferOutputStream()
        # Without the schema of Arrow, which has the columns' comments, the footer is a third of the size.
        with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({HEADER_KEY: msgspec.json.encode(header).decode()})
        return bytes(sink.getvalue().to_pybytes())

    def read_header(self, read: Read) -> bytes | None:
        tail = read(-_HEADER_BYTES, None)
        if tail is None:
            return None
        size = int.from_bytes(tail[-8:-4], "little") + 8
        if tail[-4:] != b"PAR1" or size > _MAX_FOOTER:
            raise InvalidObject("it is not Parquet, or cut off")
        if size > len(tail):
            tail = read(-size, None) or b""
        try:
            # The metadata is found from the end, and wants at least the size of an empty file.
            footer = pq.read_metadata(pa.BufferReader(b"PAR1" + tail[-size:]))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InvalidObject(f"its footer is damaged: {error}") from error
        found: bytes | None = (footer.metadata or {}).get(HEADER_KEY.encode())
        if found is None:
            raise InvalidObject("it has no header of this package")
        return found

    def read_rows(self, content: bytes) -> list[StoredRow]:
        table = pq.read_table(pa.BufferReader(content), columns=list(StoredRow.__struct_fields__))
        return [StoredRow(**row) for row in table.to_pylist()]


#: Beginning of a gzip file that has an extra field, without a time; RFC 1952, 2.3.
_GZIP: Final = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff"

#: Marks this package's subfield of the extra field.
_SUBFIELD: Final = b"OT"


class Ndjson(ObjectFormat):
    """JSON lines in gzip, the header in gzip's extra field: every line is a row, and an empty page has none."""

    suffix = ".ndjson.gz"

    def encode(self, table: pa.Table, header: PageHeader) -> bytes:
        text = b"".join(msgspec.json.encode(row) + b"\n" for row in table.to_pylist())
        json = msgspec.json.encode(header)
        extra = _SUBFIELD + struct.pack("<H", len(json)) + json
        deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        body = deflate.compress(text) + deflate.flush()
        trailer = struct.pack("<II", zlib.crc32(text), len(text) & 0xFFFFFFFF)
        return _GZIP + struct.pack("<H", len(extra)) + extra + body + trailer

    def read_header(self, read: Read) -> bytes | None:
        head = read(0, _HEADER_BYTES)
        if head is None:
            return None
        start = len(_GZIP) + 2
        if not head.startswith(_GZIP[:4]) or head[start : start + 2] != _SUBFIELD:
            raise InvalidObject("it is not gzip with a header of this package, or compressed anew")
        size = int.from_bytes(head[start + 2 : start + 4], "little")
        finish = start + 4 + size
        if finish > len(head):
            head = read(0, finish) or b""
        if finish > len(head):
            raise InvalidObject("it is cut off")
        return head[start + 4 : finish]

    def read_rows(self, content: bytes) -> list[StoredRow]:
        with gzip.open(io.BytesIO(content)) as lines:
            return [_read_line(line) for line in lines]


def _read_line(line: bytes) -> StoredRow:
    row: dict[str, Any] = msgspec.json.decode(line)
    raw = row["rejected_line"]
    decoded = None if raw is None else base64.b64decode(raw, validate=True)
    return StoredRow(**{name: row[name] for name in StoredRow.__struct_fields__} | {"rejected_line": decoded})


FORMATS: Final[dict[str, ObjectFormat]] = {"parquet": Parquet(), "ndjson": Ndjson()}
