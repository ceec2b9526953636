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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from http.client import HTTPResponse
from types import TracebackType
from typing import IO, Any, BinaryIO, Final, cast

from outbound_transfer.protocol.errors import InvalidDelivery, SourceUnreadable

CHUNK_BYTES: Final = 1024 * 1024

#: What is content as it is.
BYTES_OR_TEXT: Final = (str, bytes, bytearray, memoryview)


@dataclass(frozen=True)
class ContentWriter:
    """Content that a function writes, in bounded memory.

    :ivar write: is called with an empty binary file, open for writing and reading, which it may seek in and need not
        close; once in each try that needs the content. Its errors fail the try as they are. What it wraps the file in
        it must close, such as a TextIOWrapper or a ZipFile: what that still holds is not in the file.
    """

    write: Callable[[BinaryIO], object]


class Content:
    """Wraps content, so that no log, rendered field, serialized DAG or error shows it.

    :ivar value: text (UTF-8), bytes, a binary file that can seek, a :class:`ContentWriter`, or a callable without
        arguments that returns text, bytes or a binary file.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<content>"

    def __deepcopy__(self, memo: object) -> Content:
        return self  # Airflow copies operators, and a file or a connection of a callable cannot be copied

    @classmethod
    def of(cls, name: str, value: Any) -> Content:
        """Wrap a value, unless it is wrapped.

        :raises InvalidDelivery: it cannot be content.
        """
        content = value if isinstance(value, Content) else cls(value)
        if not (callable(content.value) or _is_content(content.value) or isinstance(content.value, ContentWriter)):
            raise _not_content(name, content.value)
        return content

    @property
    def sha256(self) -> str:
        """Digest of text or bytes, in hexadecimal; "" of content that is not produced yet."""
        if not isinstance(self.value, BYTES_OR_TEXT):
            return ""
        digest = hashlib.sha256()
        for chunk in _chunks_of(self.value):
            digest.update(chunk)
        return digest.hexdigest()


@dataclass(frozen=True)
class HeldContent:
    """Content whose size and digest are known, as the backend of a :class:`.Source`.

    :ivar size: bytes.
    :ivar sha256: in hexadecimal.
    """

    size: int
    sha256: str
    _spooled: IO[bytes] = field(repr=False)

    def stat(self, opened: BinaryIO | None = None) -> tuple[int, str]:  # noqa: ARG002  # it never changes
        return self.size, f"sha256:{self.sha256}"

    def open(self) -> BinaryIO:
        return cast("BinaryIO", SpoolReader(self._spooled))


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

    def hold(self, name: str, content: Content) -> HeldContent:
        """Produce content, and hold it.

        :param name: of the file, for messages.
        :raises InvalidDelivery: it is no content, or a file that may not be read from its beginning.
        :raises SourceUnreadable: a file of content cannot be read.
        """
        value = content.value
        if isinstance(value, ContentWriter):
            return self.write(value.write)
        if not callable(value):
            return self._hold(name, value, is_new=False)
        value = value()
        with closing(value) if hasattr(value, "close") else nullcontext():
            return self._hold(name, value, is_new=True)

    def write(self, write: Callable[[BinaryIO], object]) -> HeldContent:
        """Hold what a function writes; see :class:`ContentWriter`."""
        spooled = self._open_files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        # A handle of its own, which the function may close: a TextIOWrapper around it does.
        with os.fdopen(os.dup(spooled.fileno()), "w+b") as file:
            write(file)
        size, digest = 0, hashlib.sha256()
        reader = SpoolReader(spooled)
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
        return HeldContent(size, digest.hexdigest(), spooled)

    def _hold(self, name: str, value: Any, *, is_new: bool) -> HeldContent:
        """:param is_new: a callable has just returned it."""
        if isinstance(value, BYTES_OR_TEXT):
            chunks = _chunks_of(value)
        elif _is_content(value):
            chunks = _chunks_of_file(name, value, is_new=is_new)
        else:
            raise _not_content(name, value)
        return self.write(lambda file: file.writelines(chunks))


class SpoolReader(io.RawIOBase):
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


#: What begins an expression, a statement and a comment of Jinja.
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
    return callable(value) or _is_content(value)


def _is_content(value: object) -> bool:
    return isinstance(value, BYTES_OR_TEXT) or hasattr(value, "read")


def _not_content(name: str, value: object) -> InvalidDelivery:
    return InvalidDelivery(
        f"the content of {name!r} is {type(value).__name__}; it may be text, bytes, a binary file, or a "
        "callable that returns one of them, such as the to_csv of a DataFrame"
    )


def _chunks_of(value: str | bytes | bytearray | memoryview) -> Iterator[bytes]:
    """:raises InvalidDelivery: the text cannot be encoded."""
    if isinstance(value, memoryview):
        value = value.tobytes()
    for start in range(0, len(value), CHUNK_BYTES):
        chunk = value[start : start + CHUNK_BYTES]
        try:
            yield chunk.encode() if isinstance(chunk, str) else bytes(chunk)
        except UnicodeEncodeError:
            # The original error holds the text.
            raise InvalidDelivery("a text of content is not valid Unicode: give it as bytes") from None


def _chunks_of_file(name: str, file: Any, *, is_new: bool) -> Iterator[bytes]:
    """Yield all bytes of a file of content, from its first.

    :param is_new: nothing has read it, so it need not be able to seek.
    :raises InvalidDelivery: an earlier try may have read it, or it is no binary file.
    :raises SourceUnreadable: it cannot be read, or stops before the size that its server announced.
    """
    can_seek = _rewind(file)
    if not (can_seek or is_new):
        raise InvalidDelivery(
            f"the content of {name!r} is a file that cannot be read from its beginning again, as a retry must: give a "
            "callable that opens it"
        )
    is_empty = True
    while chunk := _read_chunk(name, file):
        is_empty = False
        yield bytes(chunk)
    if missing := _missing_bytes(file):
        raise SourceUnreadable(
            f"the content of {name!r} cannot be read: the server closed the connection {missing:,} bytes before its end"
        )
    if is_empty and not can_seek:
        raise InvalidDelivery(
            f"the content of {name!r} is a stream without a byte, which an earlier try may have read: open it in the "
            'callable, or return b"" for an empty file'
        )


def _missing_bytes(file: Any) -> int:
    """Return how many bytes of a response of HTTP never came: Python's reports a cut as an ordinary end.

    Only of responses: the ``length`` of other files, such as those of GridFS, is their size.
    """
    response = getattr(file, "raw", file)  # of a BufferedReader around it
    if isinstance(response, HTTPResponse):
        return response.length or 0
    missing = getattr(response, "length_remaining", None)  # of urllib3 and so of requests, which may not check it
    return missing if type(missing) is int and missing > 0 else 0


def _rewind(file: Any) -> bool:
    try:
        file.seek(0)
    except (AttributeError, OSError, ValueError):  # it cannot, or is closed
        return False
    return True


def _read_chunk(name: str, file: Any) -> Any:
    try:
        chunk = file.read(CHUNK_BYTES)
    except Exception as error:  # each library has its own errors
        raise SourceUnreadable(f"the content of {name!r} cannot be read: {type(error).__name__} {error}") from error
    if not isinstance(chunk, bytes | bytearray | memoryview):
        raise InvalidDelivery(
            f"the content of {name!r} is a file that returns {type(chunk).__name__} and not bytes: open it in binary "
            "mode"
        )
    return chunk
