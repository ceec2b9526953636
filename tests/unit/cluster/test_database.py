"""The shared database is asked when it can be, left alone for a while when it cannot, and never waited for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from outbound_transfer.cluster import database
from outbound_transfer.cluster.database import RETRY_INTERVAL, DatabaseUnavailable, SharedDatabase


class Scene:
    """A database that opens, fails or hangs."""

    def __init__(self) -> None:
        self.now, self.opened = 0.0, 0
        self.is_down = False
        self.hangs = threading.Event()
        self.hangs.set()
        self.shared = SharedDatabase("warehouse", self.open, clock=lambda: self.now)

    def open(self) -> Any:
        self.opened += 1
        return f"warehouse {self.opened}"

    def work(self, warehouse: Any) -> str:
        self.hangs.wait()
        if self.is_down:
            raise ConnectionError("no route\nDETAIL: a row")
        return f"done in {warehouse}"


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.hangs.set()


def test_it_is_opened_once(scene: Scene) -> None:
    assert [scene.shared.run(scene.work) for _ in range(3)] == ["done in warehouse 1"] * 3


def test_a_failure_is_logged_once_and_the_database_left_alone(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.is_down = True
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            scene.shared.run(scene.work)
    scene.is_down = False
    with pytest.raises(DatabaseUnavailable):
        scene.shared.run(scene.work)
    assert [record.getMessage() for record in caplog.records] == [
        "Could not share the key's calls through connection 'warehouse'; this process goes on alone and asks again "
        "every 60 s: ConnectionError: no route"
    ]
    scene.now += RETRY_INTERVAL
    assert scene.shared.run(scene.work) == "done in warehouse 1"
    assert not scene.shared.has_failed


def test_one_that_hangs_holds_up_nobody(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "TIMEOUT", 0.05)
    scene.hangs.clear()
    with pytest.raises(DatabaseUnavailable):
        scene.shared.run(scene.work)
    with pytest.raises(DatabaseUnavailable):
        scene.shared.submit(scene.work).result(0)
    assert "no response within" in caplog.text
    scene.hangs.set()
    scene.now += RETRY_INTERVAL
    monkeypatch.setattr(database, "TIMEOUT", 10)
    assert scene.shared.run(scene.work) == "done in warehouse 1"


def test_it_is_opened_anew_after_its_connection_was_corrected(scene: Scene) -> None:
    scene.shared.run(scene.work)
    scene.shared.reopen(scene.open)
    assert scene.shared.run(scene.work) == "done in warehouse 2"


def test_a_transaction_that_ends_too_late_does_not_make_the_database_usable(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TIMEOUT", 0.05)
    scene.hangs.clear()
    late = scene.shared.submit(scene.work)
    with pytest.raises(DatabaseUnavailable):
        scene.shared.run(scene.work)
    scene.hangs.set()
    assert late.result(10) == "done in warehouse 1"
    with pytest.raises(DatabaseUnavailable):
        scene.shared.run(scene.work)
