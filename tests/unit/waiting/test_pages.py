"""Pages that triggerers share: found for a while, and missed by nobody while the database is down."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from outbound_transfer.client.models import Recipient, Transfer, TransferPage, UnreadableRow
from outbound_transfer.store.config import SqliteFileHook
from outbound_transfer.store.engine import Database
from outbound_transfer.waiting import reader
from outbound_transfer.waiting.reader import SharedPages

ROW = Transfer("t", "pending", "", sent_at="2024-01-01T00:00:00Z")
SHOWN = TransferPage((ROW,), "next")
READ = TransferPage((replace(ROW, subject="secret", recipients=(Recipient("ann@example.com"),)),), "next")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no silent database."""
    monkeypatch.setattr(reader, "MAX_SECONDS", 60.0)


def shared(file: Path, key: str = "key") -> SharedPages:
    return SharedPages(Database(SqliteFileHook(file), "deliveries"), "outbound_transfer_", None, key)


def test_a_page_replaces_the_one_before_and_those_of_yesterday(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = shared(tmp_path / "pages.db")
    one.keep("partial ", READ)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 100_000)
    for _ in range(2):
        one.keep("pending ", SHOWN)
    assert one._database is not None
    with one._database.begin() as tx:
        assert tx.execute(sa.text("SELECT COUNT(*) FROM outbound_transfer_pages")).scalar() == 1
    assert one.find("pending ", 60.0) == SHOWN


def test_a_page_with_a_row_that_is_unreadable_is_read_by_everybody(tmp_path: Path) -> None:
    one = shared(tmp_path / "pages.db")
    one.keep("partial ", TransferPage((ROW,), None, (UnreadableRow("u", "reason"),)))
    assert one.find("partial ", 60.0) is None


def test_a_database_that_is_down_or_silent_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reader, "MAX_SECONDS", 0.1)
    asked, silent = [], threading.Event()

    def connect() -> None:
        asked.append(1)
        silent.wait(30)
        raise OSError("secret row\nDETAIL: ann@example.com")

    for is_silent in (True, False):
        if not is_silent:
            silent.set()
        hook = SqliteFileHook(tmp_path / "silent.db")
        monkeypatch.setattr(hook, "get_conn", connect)
        one = SharedPages(Database(hook, "deliveries"), "outbound_transfer_", None, "key")
        for _ in range(3):
            assert one.find("pending ", 60.0) is None
            one.keep("pending ", READ)
    assert len(asked) == 2
    assert len(caplog.records) == 2
    assert "ann@example.com" not in caplog.text
