"""Progress of an upload in the log: now and then, in a person's units."""

from __future__ import annotations

import pytest

from outbound_transfer.progress import INTERVAL, Progress, in_units

MB = 1_048_576


class Lines:
    """A log that keeps what it is told."""

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
        (1023, "1023 B"),
        (1024, "1.0 kB"),
        (1536, "1.5 kB"),
        (MB, "1.0 MB"),
        (1.5 * MB, "1.5 MB"),
        (1024 * MB, "1.00 GB"),
        (5_000 * 1024 * MB, "5000.00 GB"),
    ],
)
def test_sizes_are_read_by_people(size: float, text: str) -> None:
    assert in_units(size) == text


def test_a_line_comes_every_few_seconds_and_not_for_every_chunk() -> None:
    clock, log = Clock(), Lines()
    progress = Progress("a.bin", 100 * MB, log, clock)
    for sent in range(1, 101):
        clock.now += INTERVAL / 25
        progress(sent * MB)
    assert len(log.lines) == 4
    assert log.lines[0] == "a.bin: 25.0 MB of 100.0 MB (25 %), 5.0 MB/s"
    progress.done()
    assert log.lines[-1] == "Attached a.bin: 100.0 MB in 20.0 s (5.0 MB/s)"


@pytest.mark.parametrize("size", [0, 1])
def test_an_upload_that_takes_no_time_or_has_no_bytes(size: int) -> None:
    clock, log = Clock(), Lines()
    progress = Progress("a", size, log, clock)
    progress(size)
    clock.now += INTERVAL
    progress(size)
    progress.done()
    assert len(log.lines) == 2
    assert f"({100 * size} %)" in log.lines[0]
    instant = Progress("a", size, log, clock)
    instant.done()
    assert " in 0.0 s " in log.lines[-1]
