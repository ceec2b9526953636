"""The checksum of what was uploaded."""

from __future__ import annotations

import hashlib

from outbound_transfer.files.checksum import HashingUpload
from outbound_transfer.protocol.messages import Upload


def test_a_digest_is_of_the_last_whole_reading() -> None:
    readings = iter([[b"ab"], [b"ab", b"cd"], [b"a"]])
    digest = HashingUpload(Upload("a", 4, lambda: iter(next(readings))))
    cut_off = digest.upload.chunks()
    next(cut_off)
    cut_off.close()
    assert digest.sha256 == ""
    assert b"".join(digest.upload.body()) == b"abcd"
    assert digest.sha256 == hashlib.sha256(b"abcd").hexdigest()
    next(digest.upload.chunks())
    assert digest.sha256 == hashlib.sha256(b"abcd").hexdigest()
