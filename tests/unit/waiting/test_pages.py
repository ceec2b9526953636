"""Pages that triggerers share: found for a while, and missed by nobody while the database is down."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from outbound_transfer.waiting import pages
from outbound_transfer.waiting.pages import SharedPages

SHOWN = [[["t", "pending", 1.0, None]], "next"]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no silent database."""
    monkeypatch.setattr(pages, "MAX_SECONDS", 60.0)


def shared(file: Path, key: str = "key") -> SharedPages:
    return SharedPages(
        sa.create_engine(f"sqlite:///{file}", poolclass=sa.NullPool), "outbound_transfer_pages", None, key
    )


def test_a_page_is_found_by_others_with_the_same_key_until_it_is_too_old(tmp_path: Path) -> None:
    file = tmp_path / "pages.db"
    shared(file).keep("pending ", SHOWN)
    assert shared(file).find("pending ", 60.0) == SHOWN
    assert shared(file).find("pending next", 60.0) is None
    assert shared(file, "other key").find("pending ", 60.0) is None
    time.sleep(0.01)
    assert shared(file).find("pending ", 0.001) is None


def test_a_page_replaces_the_one_before_and_those_of_yesterday(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = shared(tmp_path / "pages.db")
    one.keep("partial ", [[], None])
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 100_000)
    for _ in range(2):
        one.keep("pending ", SHOWN)
    with one._engine.connect() as tx:
        assert tx.execute(sa.text("SELECT COUNT(*) FROM outbound_transfer_pages")).scalar() == 1
    assert one.find("pending ", 60.0) == SHOWN


def test_two_that_keep_a_page_at_once_harm_nothing(tmp_path: Path) -> None:
    ones = [shared(tmp_path / "pages.db") for _ in range(4)]
    ones[0].keep("pending ", SHOWN)
    threads = [threading.Thread(target=one.keep, args=("pending ", SHOWN)) for one in ones]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert ones[0].find("pending ", 60.0) == SHOWN


def test_a_database_that_is_down_or_silent_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pages, "MAX_SECONDS", 0.1)
    asked, silent = [], threading.Event()

    def connect() -> None:
        asked.append(1)
        silent.wait(30)
        raise OSError("secret row\nDETAIL: ann@example.com")

    for is_silent in (True, False):
        if not is_silent:
            silent.set()
        engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)
        one = SharedPages(engine, "outbound_transfer_pages", None, "key")
        for _ in range(3):
            assert one.find("pending ", 60.0) is None
            one.keep("pending ", SHOWN)
    assert len(asked) == 2
    assert len(caplog.records) == 2
    assert "ann@example.com" not in caplog.text
