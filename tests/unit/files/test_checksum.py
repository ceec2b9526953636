"""Checksums: of what was uploaded, and in a file, as the tool reads it that recipients have."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbound_transfer.files.checksum import HashingUpload, with_checksums
from outbound_transfer.files.content import Spool
from outbound_transfer.files.sources import resolve_files
from outbound_transfer.protocol.content_disposition import check_name
from outbound_transfer.protocol.errors import InvalidDelivery, NameRefused, SourceChanged
from outbound_transfer.protocol.messages import Upload


def is_deliverable(name: str) -> bool:
    try:
        check_name(name)
    except NameRefused:
        return False
    return name != "SHA256SUMS"


NAMES = st.text(min_size=1, max_size=60).filter(is_deliverable)


def check(folder: Path) -> int:
    return subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, capture_output=True
    ).returncode


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(NAMES, st.binary(max_size=2000), min_size=1, max_size=5))
def test_it_is_checked_by_the_usual_tool(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder, Spool() as spool:
        sources = resolve_files([{"name": name, "content": data} for name, data in files.items()], spool)
        for source in with_checksums("SHA256SUMS", sources, spool):
            Path(folder, source.name).write_bytes(b"".join(source.upload().body()))
        assert check(Path(folder)) == 0
        Path(folder, next(iter(files))).write_bytes(b"other bytes than were sent, and more of them" * 60)
        assert check(Path(folder)) == 1


def test_another_file_may_not_have_its_name() -> None:
    with Spool() as spool, pytest.raises(InvalidDelivery, match="two files have one name.*SHA256SUMS"):
        with_checksums("SHA256SUMS", resolve_files([{"name": "SHA256SUMS", "content": "a"}], spool), spool)


def test_a_file_that_has_changed_since_it_was_found_has_no_checksum(tmp_path: Path) -> None:
    (file := tmp_path / "a.csv").write_text("a")
    with Spool() as spool:
        sources = resolve_files(str(file), spool)
        file.write_text("other")
        with pytest.raises(SourceChanged):
            with_checksums("SHA256SUMS", sources, spool)


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
