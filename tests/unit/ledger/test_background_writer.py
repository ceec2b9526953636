"""The thread that writes to the ledger: nobody waits for it, and nobody fails with it."""

from __future__ import annotations

import threading
from typing import Any

from outbound_transfer.ledger.background_writer import BackgroundWriter


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str, /, *args: Any) -> None:
        self.warning(message, *args)

    def warning(self, message: str, /, *args: Any) -> None:
        self.lines.append(message % args)


def test_of_one_key_only_the_latest_is_written_and_what_hangs_is_left_behind() -> None:
    log, done, go_on, begun = Log(), [], threading.Event(), threading.Event()

    def hang(tables: list[Any]) -> None:
        begun.set()
        go_on.wait(60)

    writer = BackgroundWriter(lambda: done, log)
    writer.submit("a", hang)
    begun.wait(60)
    for number in range(100):
        writer.submit("a", lambda tables, number=number: tables.append(number))
    writer.submit("b", lambda tables: tables.append("b"))
    assert writer.backlog == 2
    assert writer.close(0.01) is False
    assert done == []
    go_on.set()
    assert writer.close(60) is True
    assert (done, log.lines, writer.has_failed) == ([99, "b"], [], False)


def test_a_flush_waits_for_what_runs_and_what_is_pending_and_gives_up() -> None:
    done, go_on, begun = [], threading.Event(), threading.Event()

    def hang(tables: list[Any]) -> None:
        begun.set()
        go_on.wait(60)

    writer = BackgroundWriter(lambda: done, Log())
    assert writer.flush(60) is True
    writer.submit("a", hang)
    begun.wait(60)
    assert writer.flush(0.01) is False
    writer.submit("b", lambda tables: tables.append("b"))
    assert writer.flush(0.01) is False
    go_on.set()
    assert writer.flush(60) is True
    assert done == ["b"]
    assert writer.close(60) is True


def test_failures_are_told_once_and_the_next_note_is_tried_again() -> None:
    log, done, failing = Log(), [], [OSError("first\nline"), OSError("again")]

    def begin() -> list[Any]:
        if failing:
            raise failing.pop(0)
        return done

    writer = BackgroundWriter(begin, log)
    for each in "abc":
        writer.submit(each, lambda tables, each=each: tables.append(each))
    assert writer.close(60) is True
    assert (done, writer.has_failed) == (["c"], True)
    assert log.lines == ["Could not write to the delivery ledger: OSError: first line"]


def test_a_writer_that_was_given_nothing_has_no_thread() -> None:
    before = threading.active_count()
    writer = BackgroundWriter(list, Log())
    assert threading.active_count() == before
    assert writer.close(0) is True


def test_a_machine_without_a_thread_left_breaks_nothing(monkeypatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    log = Log()
    writer = BackgroundWriter(list, log)
    writer.submit("a", print)
    writer.submit("b", print)
    assert writer.close(0) is True
    assert len(log.lines) == 1
