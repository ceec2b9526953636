"""Files made of a delivery's files: all of them in one ZIP file, and their checksums. The same files give the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, BinaryIO, Final
from unicodedata import normalize
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from outbound_transfer.client.content_disposition import check_name
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.files.content import Spool
from outbound_transfer.files.find import reject_duplicate_names
from outbound_transfer.files.sources import Source

#: Of every entry, as those of the files differ from copy to copy. A ZIP file knows no earlier time.
_MODIFIED: Final = (1980, 1, 1, 0, 0, 0)

_UNIX: Final = 3
_READABLE: Final = 0o100644 << 16

#: Windows drops these, has them in no name, or takes what is before them for a drive; or names a device so.
_RESERVED: Final = re.compile(
    r'[<>:"|?*]|[. ]$|^(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3]) *(\.|$)', re.IGNORECASE
)


def check_archive_name(name: Any) -> None:
    """Check the name of an archive.

    :raises InvalidDelivery: it is not the name of a ZIP file, or the service would change it.
    """
    if not isinstance(name, str) or not name.lower().endswith(".zip"):
        raise InvalidDelivery(f'archive is the name of a ZIP file and so ends in ".zip", not {name!r:.100}')
    check_name(name)


def pack(name: str, sources: Sequence[Source], spool: Spool) -> Source:
    """Pack files into a ZIP file, in their order, each under its name; in bounded memory and of any size (ZIP64).

    :raises InvalidDelivery: Windows or macOS would unpack a file elsewhere, under another name, or over another.
    :raises SourceChanged: a file changed while it was read.
    """
    _check_entry_names(sources)
    return spool.hold(name, partial(_write_entries, sources=sources))


def _check_entry_names(sources: Iterable[Source]) -> None:
    seen: dict[str, str] = {}
    for name in (source.name for source in sources):
        other = seen.setdefault(normalize("NFC", normalize("NFC", name).casefold()), name)
        if _RESERVED.search(name):
            reason = (
                'has one of the characters < > : " | ? *, ends in a dot or a space, or is the name of a device '
                "(CON, AUX, NUL, COM1 …): Windows cannot unpack it"
            )
        elif other != name:
            reason = f"is that of {other!r} where upper and lower case, or forms of an accent, are the same"
        else:
            continue
        raise InvalidDelivery(f'{name!r} in an archive {reason}; give another with {{"path": …, "name": …}}')


def _write_entries(file: BinaryIO, sources: Sequence[Source]) -> None:
    with ZipFile(file, "w") as archive:
        for source in sources:
            entry = ZipInfo(source.name, _MODIFIED)
            entry.compress_type, entry.create_system, entry.external_attr = ZIP_DEFLATED, _UNIX, _READABLE
            entry.file_size = source.size  # decides whether the entry is one of ZIP64
            with archive.open(entry, "w") as packed:
                for chunk in source.read():
                    packed.write(chunk)


def with_checksums(name: str, sources: Sequence[Source], spool: Spool) -> list[Source]:
    """Return the files, followed by one that ``sha256sum --check`` reads: a line with SHA-256 and name for each.

    Each file is read once more than it is uploaded. No name needs to be escaped: the service takes no line breaks and
    no backslashes (service-api.md, R31).

    :raises InvalidDelivery: another file has the name.
    :raises SourceChanged: a file changed while it was read.
    """

    def write(file: BinaryIO) -> None:
        file.writelines(f"{source.sha256()}  {source.name}\n".encode() for source in sources)

    with_them = [*sources, spool.hold(name, write)]
    reject_duplicate_names(with_them)
    return with_them
