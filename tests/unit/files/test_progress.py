"""Progress of an upload in the log: at intervals, in readable units."""

from __future__ import annotations

import pytest

from outbound_transfer.files.archive import pack
from outbound_transfer.files.content import Spool
from outbound_transfer.files.progress import INTERVAL, UploadProgress, log_archive
from outbound_transfer.files.sources import resolve_files
from outbound_transfer.protocol.wording import format_bytes

MB = 1_000_000


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str, /, *args: object) -> None:
        self.lines.append(message % args)

    warning = info


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (1_000, "1 kB"),
        (1_024, "1.02 kB"),
        (1_536, "1.54 kB"),
        (999_600, "1 MB"),
        (MB, "1 MB"),
        (1_234_567, "1.23 MB"),
        (1.5 * MB, "1.5 MB"),
        (1_000 * MB, "1 GB"),
        (5_000_000 * MB, "5 TB"),
        (5_000_000_000 * MB, "5,000 TB"),
        (10**16, "10,000 TB"),
    ],
)
def test_sizes_are_in_units_of_a_thousand(size: float, text: str) -> None:
    assert format_bytes(size) == text


def test_progress_is_logged_every_few_seconds_not_for_each_chunk() -> None:
    clock, log = Clock(), Lines()
    progress = UploadProgress("a.bin", 100 * MB, log, clock)
    for sent in range(1, 101):
        clock.now += INTERVAL / 25
        progress(sent * MB)
    assert len(log.lines) == 4
    assert log.lines[0] == "a.bin: 25 MB of 100 MB (25 %), 5 MB/s"
    progress.done()
    assert log.lines[-1] == "Attached a.bin: 100 MB in 20.0 s (5 MB/s)"


@pytest.mark.parametrize("size", [0, 1])
def test_an_upload_that_takes_no_time_or_has_no_bytes(size: int) -> None:
    clock, log = Clock(), Lines()
    progress = UploadProgress("a", size, log, clock)
    progress(size)
    clock.now += INTERVAL
    progress(size)
    progress.done()
    assert len(log.lines) == 2
    assert f"({100 * size} %)" in log.lines[0]
    immediate = UploadProgress("a", size, log, clock)
    immediate.done()
    assert " in 0.0 s " in log.lines[-1]


def test_the_log_says_what_an_archive_holds() -> None:
    log = Lines()
    with Spool() as spool:
        sources = resolve_files([{"name": name, "content": "one"} for name in ("a", "b")], spool)
        log_archive(pack("both.zip", sources, spool), sources, log)

    (line,) = log.lines
    assert line.startswith("Packed 2 files (6 B) into both.zip: ")
