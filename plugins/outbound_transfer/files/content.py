"""Files that do not exist yet: given as content, or packed from other files. They are held for one attempt.

Nothing is produced before it is needed: a retry of a delivery that was sent calls no producer. Held content has its
SHA-256 as its fingerprint, so the same bytes are the same file in each attempt, and different ones are another.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from io import BufferedRandom
from typing import IO, Any, BinaryIO, Final
from unicodedata import normalize
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.new_transfer import check_name
from outbound_transfer.files.sources import Source, reject_duplicate_names

_READABLE: Final = 0o100644 << 16  # permissions of an entry of an archive

#: Windows drops these, rejects them in names, reads what precedes them as a drive, or names a device so.
_RESERVED: Final = re.compile(
    r'[<>:"|?*]|[. ]$|^(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3]) *(\.|$)', re.IGNORECASE
)

_BYTES: Final = (bytes, bytearray, memoryview)
_TEMPLATE: Final = re.compile("{[{%#]")  # the beginning of an expression, a statement or a comment of Jinja


class Content:
    """Content of a file, which no log, rendered field, serialized Dag or error shows.

    :ivar value: a string (stored as UTF-8), bytes, or a callable without arguments that returns one of them.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<content>"  # the same at each parse, so that an unchanged Dag has one version

    def __deepcopy__(self, memo: object) -> Content:
        return self  # Airflow copies operators, and a connection of a callable cannot be copied

    @classmethod
    def of(cls, name: str, value: Any) -> Content:
        content = value if isinstance(value, Content) else cls(value)
        if not callable(content.value):
            _require_content(name, content.value)
        return content

    def write_to(self, file: BinaryIO, name: str) -> None:
        """Produce the content of the file with this name, and write it; InvalidDelivery if it is invalid."""
        value = self.value() if callable(self.value) else self.value
        _require_content(name, value)
        try:
            file.write(value.encode() if isinstance(value, str) else bytes(value))  # a view may have gaps
        except UnicodeEncodeError:
            # The original error contains the string.
            raise InvalidDelivery(f"the content of {name!r} is not valid Unicode: give it as bytes") from None


class ContentWriter(Content):
    """Content of any size that a function writes in bounded memory.

    :ivar value: called once in each attempt that needs the content, with an empty binary file, open for reading and
        writing. It may seek and need not close the file. Its errors fail the attempt unchanged. It must close wrappers
        around the file, such as a TextIOWrapper or a ZipFile; otherwise, their buffered bytes are lost.
    """

    def __init__(self, write: Callable[[BinaryIO], object]) -> None:
        super().__init__(write)

    def write_to(self, file: BinaryIO, name: str) -> None:  # noqa: ARG002
        self.value(file)


class Spool(ExitStack):
    """Holds the contents of one attempt. Leave its context only after the last read of them.

    They are in temporary files without a name (in ``TMPDIR``), which disappear with the process, however it ends.
    """

    def hold(self, name: str, write: Callable[[BinaryIO], object]) -> Source:
        """Hold what a function writes; see :class:`ContentWriter`. It is read by one reader at a time."""
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
    """Wrap every content in ``files``, at any level.

    :param rendered: whether to wrap strings and other values, too; before rendering, they may be templates or XComs.
    """
    if isinstance(files, list | tuple):
        return [wrap_contents(spec, rendered=rendered) for spec in files]
    if isinstance(files, Mapping):
        # The value of an unknown key, which is refused later, may be content under a misspelled one.
        names = ("path", "name")
        return {key: value if key in names else _wrap(value, rendered=rendered) for key, value in files.items()}
    return Content(files) if isinstance(files, _BYTES) else files  # without a name, which is refused later


def _wrap(value: Any, *, rendered: bool) -> Any:
    # Jinja changes line ends even in text that is not a template.
    is_plain_text = isinstance(value, str) and not _TEMPLATE.search(value)
    is_final = rendered or is_plain_text or callable(value) or isinstance(value, _BYTES)
    return Content(value) if is_final and not isinstance(value, Content) else value


def _require_content(name: str, value: object) -> None:
    if not isinstance(value, (str, *_BYTES)):
        raise InvalidDelivery(
            f"the content of {name!r} is {type(value).__name__}; it must be text, bytes, a callable returning one of "
            "them, such as the to_csv of a DataFrame, or a ContentWriter"
        )


def check_archive_name(name: Any) -> None:
    """:raises InvalidDelivery: it is not the name of a ZIP file, or the service would change it."""
    if not isinstance(name, str) or not name.lower().endswith(".zip"):
        raise InvalidDelivery(f'archive must be the name of a ZIP file that ends in ".zip", not {name!r:.100}')
    check_name(name)


def pack(name: str, sources: Sequence[Source], spool: Spool) -> Source:
    """Pack files into a ZIP file, in their order, each under its name; in bounded memory and of any size (ZIP64).

    :raises InvalidDelivery: Windows or macOS would unpack a file elsewhere, under another name, or over another.
    :raises SourceChanged: a file changed while it was read.
    """
    by_name: dict[str, str] = {}
    for source in sources:
        other = by_name.setdefault(normalize("NFC", normalize("NFC", source.name).casefold()), source.name)
        reason = other != source.name and (
            f"is that of {other!r} on systems that ignore upper and lower case, or forms of an accent"
        )
        if _RESERVED.search(source.name):
            reason = (
                'has one of the characters < > : " | ? *, ends in a dot or a space, or is the name of a device '
                "(CON, AUX, NUL, COM1 …): Windows cannot unpack it"
            )
        if reason:
            raise InvalidDelivery(f'{source.name!r} in an archive {reason}; give another with {{"path": …, "name": …}}')
    return spool.hold(name, partial(_write_entries, sources=sources))


def _write_entries(file: BinaryIO, sources: Sequence[Source]) -> None:
    with ZipFile(file, "w") as archive:
        for source in sources:
            entry = ZipInfo(source.name)  # of 1980, as the times of files differ from copy to copy
            entry.compress_type, entry.external_attr = ZIP_DEFLATED, _READABLE
            entry.file_size = source.size  # decides whether the entry is one of ZIP64
            with archive.open(entry, "w") as packed:
                packed.writelines(source.read())


def with_checksums(name: str, sources: Sequence[Source], spool: Spool) -> list[Source]:
    """Return the files, followed by one that ``sha256sum --check`` reads: a line with SHA-256 and name for each.

    No name needs to be escaped: the service rejects line breaks and backslashes (service-api.md, R31).

    :raises InvalidDelivery: another file has this name.
    :raises SourceChanged: a file changed while it was read.
    """

    def write(file: BinaryIO) -> None:
        file.writelines(f"{source.sha256()}  {source.name}\n".encode() for source in sources)

    with_them = [*sources, spool.hold(name, write)]
    reject_duplicate_names(with_them)
    return with_them
