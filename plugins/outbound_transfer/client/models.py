"""What the client takes and returns besides the service's own objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from outbound_transfer.protocol.errors import SourceChanged
from outbound_transfer.protocol.models import File


@dataclass(frozen=True)
class Upload:
    """A file to attach.

    :ivar name: name of the file at the service.
    :ivar size: in bytes.
    :ivar chunks: returns the content; each call starts at the first byte.
    :ivar location: path or URI of the file, for lineage; "" if there is none.
    """

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]
    location: str = ""

    def body(self) -> Iterator[bytes]:
        """Yield the chunks that are not empty.

        :raises SourceChanged: there are more or fewer than ``size`` bytes, so the service would store another file.
        """
        left = self.size
        for chunk in filter(None, self.chunks()):
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
        if left:
            raise SourceChanged(f"{self.name!r} is not the {self.size} bytes that were declared")


class Attached(NamedTuple):
    """The service's record of a file, and how it came to be attached (service-api.md, R31).

    :ivar is_new: this attempt attached it (201); otherwise the draft already had a file of this name (200).
    :ivar is_doubtful: an earlier attempt of this call ended without a response, and may have
        attached it, or still may.
    """

    file: File
    is_new: bool
    is_doubtful: bool


class Discarded(Enum):
    """What became of a draft that was to be discarded (service-api.md, R35)."""

    REMOVED = "the draft is removed"
    NOT_FOUND = "the connection's key sees no such transfer: it was removed before, or is another user's"
    SENT = "it was sent, so it is left alone"
