"""A source is read to its end, and is no longer and no shorter than it was found."""

from __future__ import annotations

import hashlib
import io
import os

import pytest

from outbound_transfer.client.errors import SourceChanged
from outbound_transfer.files.sources import Source


@pytest.mark.parametrize("size", [1, 1 << 20, (3 << 20) + 1])
@pytest.mark.parametrize("left", [-1, 0, 1])
def test_a_file_object_may_return_fewer_bytes_than_are_asked_for(size: int, left: int) -> None:
    class Short(io.BytesIO):
        def read(self, count: int | None = -1, /) -> bytes:
            return super().read(min(count or 0, 300_000))

    content = os.urandom(size)
    source = Source.found("f", "f", lambda: Short(content), lambda: (size + left, ""))
    if left:
        with pytest.raises(SourceChanged, match="longer" if left < 0 else "shorter"):
            source.sha256()
    else:
        assert source.sha256() == hashlib.sha256(content).hexdigest()
