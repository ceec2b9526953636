"""Files that exist nowhere yet, given by their content: held for one try, in a temporary file.

Nothing is produced before it is needed: a retry of a delivery that was sent calls no producer. Held content has its
SHA-256 as its fingerprint, so the same bytes are the same file in each try, and other bytes are another file.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from io import BufferedRandom
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final

from outbound_transfer.client.errors import InvalidDelivery

if TYPE_CHECKING:
    from outbound_transfer.files.sources import Source

_BYTES: Final = (bytes, bytearray, memoryview)

#: The beginning of an expression, a statement or a comment of Jinja.
_TEMPLATE: Final = re.compile("{[{%#]")


class Content:
    """Content of a file, which no log, rendered field, serialized Dag or error shows.

    :ivar value: text (UTF-8), bytes, or a callable without arguments that returns one of them.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<content>"  # the same at each parse, so that an unchanged Dag has one version

    def __deepcopy__(self, memo: object) -> Content:
        return self  # Airflow copies operators, and a connection of a callable cannot be copied

    @classmethod
    def of(cls, name: str, value: Any) -> Content:
        """Wrap a value, unless it is wrapped.

        :raises InvalidDelivery: it cannot be content.
        """
        content = value if isinstance(value, Content) else cls(value)
        if not callable(content.value):
            _require_content(name, content.value)
        return content

    def write_to(self, file: BinaryIO, name: str) -> None:
        """Produce the content, and write it.

        :param name: of the file, for messages.
        :raises InvalidDelivery: it is no content.
        """
        value = self.value() if callable(self.value) else self.value
        _require_content(name, value)
        try:
            file.write(value.encode() if isinstance(value, str) else bytes(value))  # a view may have gaps
        except UnicodeEncodeError:
            # The original error holds the text.
            raise InvalidDelivery(f"the content of {name!r} is not valid Unicode: give it as bytes") from None


class ContentWriter(Content):
    """Content that a function writes, of any amount and in bounded memory.

    :ivar value: is called with an empty binary file, open for writing and reading, which it may seek in and need not
        close; once in each try that needs the content. Its errors fail the try as they are. It must close what it wraps
        the file in, such as a TextIOWrapper or a ZipFile: what that still holds is not in the file.
    """

    def __init__(self, write: Callable[[BinaryIO], object]) -> None:
        super().__init__(write)

    def write_to(self, file: BinaryIO, name: str) -> None:  # noqa: ARG002
        self.value(file)


class Spool(ExitStack):
    """Holds the contents of one try. Leave its context only after the last read of them.

    They are in temporary files without a name, which go with the process, however it dies. The folder is that of
    Python's ``tempfile`` (``TMPDIR``).
    """

    def hold(self, name: str, write: Callable[[BinaryIO], object]) -> Source:
        """Hold what a function writes; see :class:`ContentWriter`. It is read by one reader at a time."""
        from outbound_transfer.files.sources import Source  # not where a Dag is parsed

        spooled = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        with _reopen(spooled) as file:
            write(file)
        with _reopen(spooled) as file:
            fingerprint = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        version = os.fstat(spooled.fileno()).st_size, fingerprint
        return Source.found("", name, partial(_reopen, spooled), lambda: version)


def _reopen(spooled: IO[bytes]) -> BufferedRandom:
    """Return a handle at the file's beginning, which its user may close: a TextIOWrapper around it does."""
    file = os.fdopen(os.dup(spooled.fileno()), "r+b")
    file.seek(0)
    return file


def wrap_contents(files: Any, *, rendered: bool) -> Any:
    """Wrap every content in ``files``, wherever it is given.

    :param rendered: also text and whatever is no content; before, they may be templates, or references to XComs.
    """
    if isinstance(files, list | tuple):
        return [wrap_contents(spec, rendered=rendered) for spec in files]
    if isinstance(files, Mapping):
        # The value of an unknown key, which is refused later, may be content under a misspelled one.
        names = ("path", "name")
        return {key: value if key in names else _wrap(value, rendered=rendered) for key, value in files.items()}
    return Content(files) if isinstance(files, _BYTES) else files  # without a name, which is refused later


def _wrap(value: Any, *, rendered: bool) -> Any:
    # Jinja changes line ends also of text that is no template.
    is_plain_text = isinstance(value, str) and not _TEMPLATE.search(value)
    is_final = rendered or is_plain_text or callable(value) or isinstance(value, _BYTES)
    return Content(value) if is_final and not isinstance(value, Content) else value


def _require_content(name: str, value: object) -> None:
    if not isinstance(value, (str, *_BYTES)):
        raise InvalidDelivery(
            f"the content of {name!r} is {type(value).__name__}; it may be text, bytes, a callable that returns one of "
            "them, such as the to_csv of a DataFrame, or a ContentWriter"
        )
