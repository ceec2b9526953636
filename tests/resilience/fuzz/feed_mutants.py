"""Safeguards of the ingestion taken out, to test that the fuzzer notices."""

from __future__ import annotations

from typing import Any

import pytest

from outbound_transfer.protocol import events
from outbound_transfer.protocol.events import Page
from outbound_transfer.warehouse import events as landing
from outbound_transfer.warehouse import timestamps
from outbound_transfer.warehouse.events import EventStore
from outbound_transfer.warehouse.maintenance import SqlFeedMaintenance


def a_page_that_is_refused_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database's refusal ends the task, each time."""
    monkeypatch.setattr(EventStore, "load_page", EventStore._append_or_insert_page)


def rejected_lines_that_do_not_come_again_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page takes the place of all rejected lines from its cursor to the next."""
    keep = EventStore._save_rejected

    def forget_and_keep(self: EventStore, cursor: Any, page: Page, now: Any) -> None:
        where = "WHERE [account] = ? AND [cursor_from] >= ? AND [cursor_from] < ?"
        self.warehouse.run(
            cursor, f"DELETE FROM {{rejected_lines}} {where}", (self.account, page.cursor, page.next_cursor)
        )
        keep(self, cursor, page, now)

    monkeypatch.setattr(EventStore, "_save_rejected", forget_and_keep)


def rejected_lines_behind_a_page_are_not_carried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of an old page is not looked for in the next one."""
    plan_changes = landing.plan_changes
    monkeypatch.setattr(landing, "plan_changes", lambda *given: plan_changes(*given)._replace(move=()))


def every_cursor_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer's X-Next-Cursor is enough, whatever it is."""
    monkeypatch.setattr(EventStore, "accepts_cursor", lambda self, page: True)


def a_timestamp_may_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time that is in no year of UTC is not expected; and no row is tried alone."""
    monkeypatch.setattr(timestamps, "OverflowError", KeyError, raising=False)
    a_page_that_is_refused_is_not_settled(monkeypatch)


def a_line_is_as_deep_as_its_reader_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing bounds how deeply a line is nested, and what is too deep to be looked at raises."""
    monkeypatch.setattr(events, "is_deep", lambda line: False)


def a_replay_lands_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rejected line that the database refuses ends the replay of all."""

    def replaced(feed: SqlFeedMaintenance, position: int, events: Any) -> int:
        with feed._warehouse.transaction() as cursor:
            for start, event in events:
                feed._replace(cursor, start, event)
        return len(events)

    monkeypatch.setattr(SqlFeedMaintenance, "_replaced", replaced)


MUTANTS = (
    a_page_that_is_refused_is_not_settled,
    rejected_lines_that_do_not_come_again_are_deleted,
    rejected_lines_behind_a_page_are_not_carried_on,
    every_cursor_is_believed,
    a_timestamp_may_raise,
    a_line_is_as_deep_as_its_reader_can,
    a_replay_lands_all_or_nothing,
)
