"""Which rows of a page a database refuses, found out by trial transactions that may fail for another reason."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from outbound_transfer.client.events import Page, read_page
from outbound_transfer.warehouse.refusals import storable_page

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def page(*ids: str) -> Page:
    lines = "".join(f'{{"event_id": "{each}", "type": "t"}}\n' for each in ids)
    headers = {"content-type": "application/x-ndjson", "x-next-cursor": str(len(ids)), "x-has-more": "false"}
    return read_page(headers, lines.encode(), cursor=0)


class Database:
    """Refuses ids that have a word, and fails for another reason at some of its trials."""

    def __init__(self, refused: str, *failing: int) -> None:
        self.refused, self.failing, self.trials = refused, failing, 0

    def __call__(self, tried: Page) -> Exception | None:
        self.trials += 1
        if self.trials in self.failing:
            return ConnectionError("server closed the connection")
        return ValueError("no") if any(self.refused in each.event_id for each in tried.events) else None


def ids(found: Page) -> tuple[list[str], list[int]]:
    return [each.event_id for each in found.events], [each.line_number for each in found.rejected]


def test_a_refused_event_becomes_a_rejected_line() -> None:
    assert ids(storable_page(page("a", "bad", "c"), Database("bad"), NOW)) == (["a", "c"], [2])


@pytest.mark.parametrize("failing", range(1, 20))
def test_a_passing_trouble_makes_no_event_a_rejected_line(failing: int) -> None:
    database = Database("bad", failing, failing + 1)
    try:
        found = storable_page(page("a", "bad", "c"), database, NOW)
    except ConnectionError:
        return
    assert ids(found) in ((["a", "c"], [2]), (["a", "bad", "c"], []))


def test_a_trouble_that_goes_on_is_raised() -> None:
    with pytest.raises(ConnectionError):
        storable_page(page("a", "bad", "c"), Database("bad", *range(3, 99)), NOW)


def test_a_page_of_which_nothing_is_accepted_stays_as_it_is() -> None:
    loaded = page("a", "b", "c", "d")
    assert storable_page(loaded, Database(""), NOW) == loaded


def test_a_users_constraint_on_ids_refuses_the_simplest_event_and_no_others() -> None:
    assert ids(storable_page(page("a", "x-1", "c"), Database("-"), NOW)) == (["a", "c"], [2])
