"""The shared database is asked when it can be, left alone for a while when it cannot, and never waited for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from outbound_transfer.cluster import database
from outbound_transfer.cluster.database import RETRY_INTERVAL, DatabaseUnavailable, SharedDatabase
from support.timeouts import TEST_TIMEOUT, eventually


class Database:
    def __init__(self, name: str) -> None:
        self.name, self.is_aborted = name, False

    def __str__(self) -> str:
        return self.name

    def abort(self) -> None:
        self.is_aborted = True


class Scene:
    """A database that opens, fails or hangs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.warehouses: list[Database] = []
        self.is_down = False
        self.hangs = threading.Event()
        self.hangs.set()
        self.shared = SharedDatabase("warehouse", self.open, clock=lambda: self.now)

    def open(self) -> Any:
        self.warehouses.append(Database(f"warehouse {self.opened + 1}"))
        return self.warehouses[-1]

    @property
    def opened(self) -> int:
        return len(self.warehouses)

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


def test_one_that_hangs_is_given_up_and_another_thread_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "TIMEOUT", 0.05)
    scene.hangs.clear()
    hanging = scene.shared.submit(scene.work)
    eventually(hanging.running)
    with pytest.raises(DatabaseUnavailable):
        scene.shared.run(scene.work)
    assert "no response within" in caplog.text
    eventually(lambda: scene.opened and scene.warehouses[0].is_aborted)
    with pytest.raises(DatabaseUnavailable):
        scene.shared.submit(scene.work).result(0)
    scene.now += RETRY_INTERVAL
    monkeypatch.setattr(database, "TIMEOUT", TEST_TIMEOUT)
    assert scene.shared.run(str) == "warehouse 2", "the first thread still hangs"
    assert not scene.shared.has_failed
    scene.hangs.set()
    assert hanging.result(TEST_TIMEOUT) == "done in warehouse 1"
    assert scene.shared.run(scene.work) == "done in warehouse 2"


def test_threads_that_hang_are_few(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "TIMEOUT", 0.01)
    monkeypatch.setattr(database, "MAX_THREADS", 10)
    scene.hangs.clear()
    for _ in range(5):
        eventually(scene.shared.submit(scene.work).running)
        with pytest.raises(DatabaseUnavailable):
            scene.shared.run(scene.work)
        scene.now += RETRY_INTERVAL
    with pytest.raises(DatabaseUnavailable):
        scene.shared.run(scene.work)
    eventually(lambda: scene.opened == 5)
    assert not scene.shared.submit(scene.work).running()
    scene.hangs.set()
    monkeypatch.setattr(database, "TIMEOUT", TEST_TIMEOUT)

    def shares_again() -> bool:
        scene.now += RETRY_INTERVAL
        try:
            return scene.shared.run(scene.work) == "done in warehouse 6"
        except DatabaseUnavailable:
            return False

    eventually(shares_again)


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
    eventually(late.running)
    with pytest.raises(DatabaseUnavailable):
        scene.shared.run(scene.work)
    scene.hangs.set()
    assert late.result(TEST_TIMEOUT) == "done in warehouse 1"
    with pytest.raises(DatabaseUnavailable):
        scene.shared.run(scene.work)
