"""Files that exist nowhere yet, given by their content: held for one try, in a temporary file.

A producer of bytes of any amount, such as an export, gives a :class:`ContentWriter` wherever ``files`` are taken::

    def write(file: BinaryIO) -> None:
        for row in rows():
            file.write(row)

    DeliverFilesOperator(files={"name": "rows.csv", "content": ContentWriter(write)}, …)

Nothing is produced before it is needed: a retry of a delivery that was sent calls no producer. Held content has its
SHA-256 as its fingerprint, so the same bytes are the same file in each try, and other bytes are another file.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, BinaryIO, Final, cast

from outbound_transfer.client.errors import InvalidDelivery

CHUNK_BYTES: Final = 1024 * 1024

#: What is content as it is.
BYTES_OR_TEXT: Final = (str, bytes, bytearray, memoryview)


@dataclass(frozen=True, repr=False)
class ContentWriter:
    """Content that a function writes, in bounded memory.

    :ivar write: is called with an empty binary file, open for writing and reading, which it may seek in and need not
        close; once in each try that needs the content. Its errors fail the try as they are. It must close what it wraps
        the file in, such as a TextIOWrapper or a ZipFile: what that still holds is not in the file.
    """

    write: Callable[[BinaryIO], object]

    def __repr__(self) -> str:
        return "<content>"  # the same at each parse, so that an unchanged Dag has one version


class Content:
    """Wraps content, so that no log, rendered field, serialized Dag or error shows it.

    :ivar value: text (UTF-8), bytes, a :class:`ContentWriter`, or a callable without arguments that returns text or
        bytes.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<content>"

    def __deepcopy__(self, memo: object) -> Content:
        return self  # Airflow copies operators, and a connection of a callable cannot be copied

    @classmethod
    def of(cls, name: str, value: Any) -> Content:
        """Wrap a value, unless it is wrapped.

        :raises InvalidDelivery: it cannot be content.
        """
        content = value if isinstance(value, Content) else cls(value)
        if not (callable(content.value) or isinstance(content.value, (*BYTES_OR_TEXT, ContentWriter))):
            raise _not_content(name, content.value)
        return content

    @property
    def sha256(self) -> str:
        """Digest of text or bytes, in hexadecimal; "" of content that is not produced yet."""
        return hashlib.sha256(_encode(self.value)).hexdigest() if isinstance(self.value, BYTES_OR_TEXT) else ""


@dataclass(frozen=True)
class Held:
    """Content whose size in bytes and SHA-256 (in hexadecimal) are known."""

    size: int
    sha256: str
    _spooled: IO[bytes] = field(repr=False)

    def open(self) -> BinaryIO:
        return cast("BinaryIO", _SpoolReader(self._spooled))


class Spool:
    """Holds the contents of one try. Leave its context only after the last read of them.

    They are in temporary files without a name, which go with the process, however it dies. The folder is that of
    Python's ``tempfile`` (``TMPDIR``).
    """

    def __init__(self) -> None:
        self._open_files = ExitStack()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open_files.close()

    def hold(self, name: str, content: Content) -> Held:
        """Produce content, and hold it.

        :param name: of the file, for messages.
        :raises InvalidDelivery: it is no content.
        """
        value = content.value
        if isinstance(value, ContentWriter):
            return self.write(value.write)
        value = value() if callable(value) else value
        if not isinstance(value, BYTES_OR_TEXT):
            raise _not_content(name, value)
        return self.write(lambda file: file.write(_encode(value)))

    def write(self, write: Callable[[BinaryIO], object]) -> Held:
        """Hold what a function writes; see :class:`ContentWriter`."""
        spooled = self._open_files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        # A handle of its own, which the function may close: a TextIOWrapper around it does.
        with os.fdopen(os.dup(spooled.fileno()), "w+b") as file:
            write(file)
        digest = hashlib.file_digest(cast("Any", _SpoolReader(spooled)), "sha256")
        return Held(os.fstat(spooled.fileno()).st_size, digest.hexdigest(), spooled)


class _SpoolReader(io.RawIOBase):
    """Reads a temporary file from its beginning, whatever else reads or has read it."""

    def __init__(self, spooled: IO[bytes]) -> None:
        self._spooled, self._position = spooled, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # Of the file and not of its number, which another file may have once this one is closed.
        chunk = os.pread(self._spooled.fileno(), len(buffer), self._position)
        buffer[: len(chunk)] = chunk
        self._position += len(chunk)
        return len(chunk)


#: The beginnings of an expression, a statement and a comment of Jinja.
_TEMPLATE_MARKS: Final = ("{{", "{%", "{#")


def wrap_contents(files: Any, *, rendered: bool) -> Any:
    """Wrap every content in ``files``, wherever it is given.

    :param rendered: also text and whatever is no content; before, they may be templates, or references to XComs.
    """
    if isinstance(files, list | tuple):
        return [wrap_contents(spec, rendered=rendered) for spec in files]
    if isinstance(files, bytes | bytearray | memoryview):  # content without a name, which is refused later
        return Content(files)
    if not isinstance(files, Mapping):
        return files
    # The value of an unknown key, which is refused later, may be content under a misspelled one.
    return {key: value if key in ("path", "name") else _wrap(value, rendered=rendered) for key, value in files.items()}


def _wrap(value: Any, *, rendered: bool) -> Any:
    is_final = rendered or _is_final(value)
    return Content(value) if is_final and not isinstance(value, Content) else value


def _is_final(value: Any) -> bool:
    if isinstance(value, str):  # Jinja changes line ends also of text that is no template
        return not any(mark in value for mark in _TEMPLATE_MARKS)
    return callable(value) or isinstance(value, (*BYTES_OR_TEXT, ContentWriter))


def _not_content(name: str, value: object) -> InvalidDelivery:
    return InvalidDelivery(
        f"the content of {name!r} is {type(value).__name__}; it may be text, bytes, a callable that returns one of "
        "them, such as the to_csv of a DataFrame, or a ContentWriter"
    )


def _encode(value: str | bytes | bytearray | memoryview) -> bytes:
    """:raises InvalidDelivery: the text cannot be encoded."""
    try:
        return value.encode() if isinstance(value, str) else bytes(value)
    except UnicodeEncodeError:
        # The original error holds the text.
        raise InvalidDelivery("a text of content is not valid Unicode: give it as bytes") from None
