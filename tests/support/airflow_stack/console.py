"""Plain lines with the time since the start: the same in a terminal and in a CI log."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console

#: A user never looks at a silent terminal for longer than this many seconds.
MAX_SILENCE: Final = 5.0


class DemoFailed(Exception):
    """Something is not as it must be; `log` is where to read why."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


class Reporter:
    """Says what happens. On a terminal some lines have a colour, elsewhere none do."""

    def __init__(self) -> None:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode still shows the rest
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._began = self._last = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        self._print(f"[{self.elapsed:5.1f} s] {text}", style)

    def heading(self, text: str) -> None:
        self._print(f"\n{text}\n{'-' * len(text)}", "bold")

    def line(self, text: str = "", style: str = "") -> None:
        self._print(text, style)

    def _print(self, text: str, style: str) -> None:
        self._console.print(text, style=style)
        sys.stdout.flush()
        self._last = time.monotonic()

    def wait_for(
        self, what: Callable[[], str], timeout: float, *, log: Path | None = None, interval: float = 0.5
    ) -> Iterator[None]:
        """Rounds of a wait; whoever waits breaks out. Says what is waited for, and fails after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            yield
            if time.monotonic() - self._last >= MAX_SILENCE - interval:
                self.say(f"... waiting for {what()}", "dim")
            time.sleep(interval)
        raise DemoFailed(f"Gave up after {timeout:.0f} s of waiting for {what()}.", log)


def size(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def tail(log: Path, lines: int = 25) -> tuple[Path, list[str]]:
    """A log with its last lines; of a folder of logs, the newest one."""
    logs = [path for path in (log, *log.rglob("*.log*")) if path.is_file()]
    if not logs:
        return log, ["(nothing)"]
    newest = max(logs, key=lambda path: path.stat().st_mtime)
    return newest, [_plain(line) for line in newest.read_text(errors="replace").splitlines()[-lines:]]


def _plain(line: str) -> str:
    try:
        record = json.loads(line)
        errors = [f"{error['exc_type']}: {error['exc_value']}" for error in record.get("error_detail") or ()]
        return "  ".join([record["timestamp"], record["level"], record["event"], *errors])
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
