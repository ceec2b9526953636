"""A file that changes before it is sent ends the delivery: no part of it, and no mixture, is ever sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from outbound_transfer.exceptions import SourceChanged
from support.calls import ATTACH, CREATE, after, before, during_upload
from support.remote_files import MB, open_files


def rewrite(path: Path, content: bytes) -> None:
    """Write with a time stamp that differs, however coarse the clock of the file system is."""
    path.write_bytes(content)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000_000))


def replace_by_another(path: Path) -> None:
    stamp, other = path.stat(), path.with_suffix(".other")
    other.write_bytes(b"y" * stamp.st_size)
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "grows": lambda path: rewrite(path, b"x" * (path.stat().st_size + 1)),
    "shrinks": lambda path: rewrite(path, b"x" * (path.stat().st_size - 1)),
    "is emptied": lambda path: rewrite(path, b""),
    "is rewritten": lambda path: rewrite(path, b"y" * path.stat().st_size),
    "is replaced": replace_by_another,
    "vanishes": Path.unlink,
    "becomes a folder": lambda path: (path.unlink(), path.mkdir()),
    "becomes a named pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "is a link that leads elsewhere": lambda path: (path.unlink(), path.symlink_to("elsewhere")),
}

MOMENTS: dict[str, Callable[[Callable[[], object]], AbstractContextManager[None]]] = {
    "before it is read": lambda change: before(CREATE, change),
    "while it is read": lambda change: during_upload("f", 1, change),
    "after it is uploaded": lambda change: after(ATTACH, change),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_file_that_changes_is_not_sent(deliver, sandbox, tmp_path, change, moment) -> None:
    path, content = tmp_path / "f", b"x" * 4 * MB
    if "link" in change:
        for name in ("there", "elsewhere"):
            (tmp_path / name).write_bytes(content)
        path.symlink_to("there")
    else:
        path.write_bytes(content)
    with (
        MOMENTS[moment](lambda: CHANGES[change](path)),
        pytest.raises(SourceChanged, match=r"changed|vanished|longer|shorter"),
    ):
        deliver(path)
    sandbox.assert_nothing_sent()
    assert open_files(str(tmp_path)) == []
