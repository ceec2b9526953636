"""All files of a delivery in one ZIP file: the same files give the same bytes, so that a retry finds them delivered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, BinaryIO, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from outbound_transfer.delivery.content import Spool
from outbound_transfer.delivery.sources import Source
from outbound_transfer.protocol.content_disposition import check_name
from outbound_transfer.protocol.errors import InvalidDelivery

#: Of every entry, as those of the files differ from copy to copy. A ZIP file knows no earlier time.
_MODIFIED: Final = (1980, 1, 1, 0, 0, 0)

_UNIX: Final = 3
_READABLE: Final = 0o100644 << 16


def check_archive_name(name: Any) -> str:
    """Return the name of an archive; "" for none.

    :raises InvalidDelivery: it is not the name of a ZIP file.
    :raises NameRefused: the service would change it.
    """
    if not name:
        return ""
    if not isinstance(name, str) or not name.lower().endswith(".zip"):
        raise InvalidDelivery(f'archive is the name of a ZIP file and so ends in ".zip", not {name!r:.100}')
    check_name(name)
    return name


def pack(name: str, sources: Sequence[Source], spool: Spool) -> Source:
    """Pack files into a ZIP file, in their order, each under its name; in bounded memory and of any size (ZIP64).

    No name leads out of the folder that the archive is unpacked in: :func:`.check_name` has passed each.

    :raises SourceChanged: a file changed while it was read.
    """
    held = spool.write(partial(_write_entries, sources=sources))
    return Source("", name, *held.stat(), held)


def _write_entries(file: BinaryIO, sources: Sequence[Source]) -> None:
    with ZipFile(file, "w") as archive:
        for source in sources:
            entry = ZipInfo(source.name, _MODIFIED)
            entry.compress_type, entry.create_system, entry.external_attr = ZIP_DEFLATED, _UNIX, _READABLE
            entry.file_size = source.size  # decides whether the entry is one of ZIP64
            with archive.open(entry, "w") as packed:
                for chunk in source.upload().body():
                    packed.write(chunk)
            source.check_unchanged()
