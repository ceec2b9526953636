"""The event feed as objects in a folder: local files and an S3 server."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow.dataset as ds
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from outbound_transfer.lake import object_chain, object_polls, objects
from outbound_transfer.lake.object_chain import list_accounts
from outbound_transfer.lake.object_errors import (
    InvalidObject,
    MissingPages,
    OtherFormat,
    PagesNotRewritten,
    StrayObjects,
    UnreliableStorage,
)
from outbound_transfer.lake.object_maintenance import open_maintenance
from outbound_transfer.lake.object_store import ObjectStore, open_store
from outbound_transfer.protocol.events import MAX_CURSOR
from outbound_transfer.warehouse.destination import CLAIM, PollRecord
from outbound_transfer.warehouse.errors import CursorMoved, InvalidCursor, InvalidName, SchemaTooNew, UnknownFeed
from support.feed_pages import event, events, page
from support.object_folders import (
    OpenStore,
    cut,
    destination,
    local_store,
    page_names,
    s3_store,
    stored_ids,
    stored_rows,
)
from support.object_storage import Bucket, running_s3


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_s3() as address:
        yield address


_numbers = itertools.count()


@pytest.fixture(params=["local", "s3"])
def open_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens one empty folder; a process that is forked opens it anew."""
    if request.param == "local":
        yield lambda: local_store(tmp_path / "events")
        return
    endpoint = request.getfixturevalue("s3")
    bucket = Bucket(endpoint, f"objects-{next(_numbers)}")
    yield lambda: s3_store(endpoint, bucket.name)
    bucket.close()


@pytest.fixture
def store(open_folder: OpenStore) -> ObjectStore:
    return open_folder()


@pytest.fixture
def folder(tmp_path: Path) -> ObjectStore:
    """A folder of local files, where it does not matter."""
    return local_store(tmp_path / "events")


@pytest.fixture(params=["parquet", "ndjson"])
def page_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ids(start: int, end: int) -> list[str]:
    return [f"e{number}" for number in range(start, end)]


def load(store: ObjectStore, last: int, size: int = 10, **options: str) -> None:
    """Load the feed up to ``last``, in a run of its own."""
    feed = destination(store, **options)
    with feed.session():
        cursor = feed.get_or_create_cursor()
        while cursor < last:
            feed.load_page(cut(cursor, size, last))
            cursor = min(cursor + size, last)


def problems(store: ObjectStore, account: str = "acme") -> list[str]:
    return list(open_maintenance(store, account).find_problems())


# ----------------------------------------------------------------------------------------------------------- loading


def test_pages_are_loaded_and_the_next_run_goes_on_from_the_objects(store: ObjectStore, page_format: str) -> None:
    load(store, 25, page_format=page_format)
    assert destination(store, page_format=page_format).get_or_create_cursor() == 25
    load(store, 30, page_format=page_format)
    suffix = {"parquet": "parquet", "ndjson": "ndjson.gz"}[page_format]
    assert page_names(store) == [f"page-{cursor:020d}.{suffix}" for cursor in (0, 10, 20, 25)]
    assert stored_ids(store) == ids(0, 30)
    assert problems(store) == []


def test_rejected_lines_and_an_event_that_is_there_twice(store: ObjectStore, page_format: str) -> None:
    feed = destination(store, page_format=page_format)
    feed.get_or_create_cursor()
    lines = (event(1), b"junk \xff", event(2), event(1), event(3, data={"text": "Grüße 🎉 日本"}))
    assert feed.load_page(page(0, *lines)) == 3
    rows = stored_rows(store)
    assert [(row["line_number"], row["event_id"]) for row in rows] == [(1, "e1"), (2, None), (3, "e2"), (5, "e3")]
    assert json.loads(rows[3]["data"]) == {"text": "Grüße 🎉 日本"}
    assert rows[1]["rejected_reason"]
    status = open_maintenance(store, "acme").status()
    assert (status.cursor, status.events, status.rejected, status.caught_up) == (5, 3, 1, True)
    assert status.occurred_at == "2026-01-01T00:00:00.000000Z"


def test_events_of_one_id_and_other_content_are_all_there_which_verify_says(
    folder: ObjectStore, page_format: str
) -> None:
    feed = destination(folder, page_format=page_format)
    feed.get_or_create_cursor()
    assert feed.load_page(page(0, event(1), event(1, type="other"), event(1), event(2))) == 3
    feed.load_page(page(4, event(2), event(3)))
    assert [row["type"] for row in stored_rows(folder) if row["event_id"] == "e1"] == ["transfer_sent", "other"]
    problems = list(open_maintenance(folder, "acme").find_problems())
    assert [problem.partition(":")[0] for problem in problems] == [
        "1 events have an id that an earlier page has",
        "1 events have the id of another event and other content",
    ]


def test_the_account_of_a_folder_that_is_damaged_is_named(folder: ObjectStore) -> None:
    feed = destination(folder)
    feed.get_or_create_cursor()
    feed.bind_account("acme.example.com")
    folder.replace(feed.chain.address_name, b"{")
    with pytest.raises(InvalidObject, match=r"address\.json is not as this package writes it .* delete it"):
        feed.bind_account("acme.example.com")
    folder.delete(feed.chain.address_name)
    feed.bind_account("other.example.com")
    assert open_maintenance(folder, "acme").read_address() == "other.example.com"


def test_the_bytes_of_a_rejected_line_come_back(folder: ObjectStore, page_format: str) -> None:
    feed = destination(folder, page_format=page_format)
    feed.get_or_create_cursor()
    feed.load_page(page(0, b"junk \xff\x00", event(1)))
    content = folder.read(f"account=acme/{page_names(folder)[0]}")
    assert content is not None
    rows = feed.chain.format.read_rows(content)
    assert [(row.event_id, row.rejected_line) for row in rows] == [(None, b"junk \xff\x00"), ("e1", None)]


def test_a_cursor_that_moves_without_lines_is_an_object_and_one_that_does_not_is_a_poll(
    store: ObjectStore, page_format: str
) -> None:
    feed = destination(store, page_format=page_format)
    feed.get_or_create_cursor()
    assert feed.load_page(page(0)) == 0
    assert page_names(store) == []
    feed.load_page(page(0, next_cursor=7, has_more=True))
    assert len(page_names(store)) == 1
    assert feed.load_page(page(7)) == 0
    again = destination(store, page_format=page_format)
    assert again.get_or_create_cursor() == 7
    assert again.load_page(page(7, *events(7, 9))) == 2
    assert stored_ids(store) == ids(7, 9)


def test_accounts_share_a_folder(folder: ObjectStore) -> None:
    names = ["acme.example.com", "a/../b", "..", 'it\'s "quoted"', "Grüße 🎉", "50%"]
    for name in names:
        load(folder, 3, account=name)
    assert list_accounts(folder) == sorted(names)
    for name in names:
        assert stored_ids(folder, name) == ids(0, 3)
        assert problems(folder, name) == []
    assert sorted(each.name for each in Path(folder.root).parent.iterdir()) == ["events"]


@pytest.mark.parametrize("account", ["", "x" * 251, "🎉" * 30, "\ud800"])
def test_an_account_that_cannot_be_a_folder_is_refused(folder: ObjectStore, account: str) -> None:
    with pytest.raises(InvalidName):
        destination(folder, account)


@pytest.mark.parametrize(
    "path",
    ["", "relative/folder", "/tmp/../etc", "s3://bucket/a//b", "file:///a/%2e%2e/b", "s3://bucket/a*", "nowhere://a/b"],
)
def test_a_path_that_is_not_one_folder_is_refused(path: str) -> None:
    with pytest.raises(InvalidName):
        open_store(path)


def test_a_feed_keeps_its_format(folder: ObjectStore) -> None:
    load(folder, 10)
    with pytest.raises(OtherFormat, match="parquet"):
        destination(folder, page_format="ndjson").get_or_create_cursor()


def test_a_feed_keeps_its_format_when_its_first_page_is_gone(folder: ObjectStore) -> None:
    load(folder, 30, page_format="ndjson")
    folder.delete(destination(folder, page_format="ndjson").chain.name(0))
    with pytest.raises(OtherFormat, match="ndjson"):
        destination(folder).get_or_create_cursor()
    assert open_maintenance(folder, "acme").read_cursor() == 30


@pytest.mark.parametrize("method", ["create", "replace"])
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def fill(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/events/_tmp/"):
        getattr(local_store(tmp_path / "events"), method)("page", b"content")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# ----------------------------------------------------------------------------------------------------------- readers


#: Runs each in a process of its own; returns what went wrong in any.
RunAtOnce: TypeAlias = Callable[[Sequence[Callable[[], Any]]], list[str]]


@pytest.fixture
def run_at_once(request: pytest.FixtureRequest) -> RunAtOnce:
    """What the processes choose by chance is the same at each run, and with a seed the same for that seed."""
    return partial(_run_at_once, request.config.getoption("--hypothesis-seed") or "0")


def _run_at_once(seed: str, tasks: Sequence[Callable[[], Any]]) -> list[str]:
    children = []
    for number, task in enumerate(tasks):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            code = 0
            try:
                random.seed(f"{seed} {number}")
                task()
            except BaseException as error:
                os.write(write, repr(error).encode())
                code = 1
            os._exit(code)
        os.close(write)
        children.append((child, read))
    failed = []
    for number, (child, read) in enumerate(children):
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read().decode()
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            failed.append(f"process {number} with seed {seed}: {said}")
    return failed


def drain(open_folder: OpenStore, last: int) -> None:
    """Load the feed beside others, each page cut in another size."""
    store = open_folder()
    while True:
        feed = destination(store)
        try:
            cursor = feed.get_or_create_cursor()
            while cursor < last:
                size = random.randrange(3, 12)
                feed.load_page(cut(cursor, size, last))
                cursor = min(cursor + size, last)
        except (CursorMoved, StrayObjects):
            continue
        return


@pytest.mark.slow
@pytest.mark.parametrize("readers", [2, 6])
def test_readers_at_once_load_everything_once(open_folder: OpenStore, run_at_once: RunAtOnce, readers: int) -> None:
    assert run_at_once([lambda: drain(open_folder, 150)] * readers) == []
    assert stored_ids(open_folder()) == ids(0, 150)
    assert problems(open_folder()) == []


def test_of_first_runs_at_once_one_loads_the_page(open_folder: OpenStore, run_at_once: RunAtOnce) -> None:
    def start() -> None:
        feed = destination(open_folder())
        assert feed.get_or_create_cursor() == 0
        feed.load_page(cut(0, 5, 5))

    failed = run_at_once([start] * 6)
    assert len(failed) == 5
    assert all("CursorMoved" in each or "assert 5 == 0" in each for each in failed)
    assert stored_ids(open_folder()) == ids(0, 5)


def test_the_reader_that_comes_second_learns_that_the_cursor_moved(store: ObjectStore) -> None:
    first, second = destination(store), destination(store)
    first.get_or_create_cursor(), second.get_or_create_cursor()
    first.load_page(cut(0, 5, 9))
    with pytest.raises(CursorMoved):
        second.load_page(cut(0, 7, 9))
    with pytest.raises(CursorMoved):
        second.load_page(page(0))
    assert second.get_or_create_cursor() == 5
    assert stored_ids(store) == ids(0, 5)


@pytest.mark.slow
def test_resets_beside_readers_lose_and_double_nothing(open_folder: OpenStore, run_at_once: RunAtOnce) -> None:
    def reset() -> None:
        feed = open_maintenance(open_folder(), "acme")
        for _ in range(6):
            time.sleep(random.uniform(0.02, 0.1))
            try:
                if position := feed.read_cursor():  # beyond it, a reset would skip events
                    feed.reset(random.randrange(position))
            except (CursorMoved, StrayObjects, UnknownFeed):
                continue

    readers = [lambda: drain(open_folder, 120)] * 3
    assert run_at_once([*readers, reset]) == []
    assert any(name.startswith("reset-") for name in open_folder().list_names("_feed/account=acme"))
    drain(open_folder, 120)
    assert stored_ids(open_folder()) == ids(0, 120)
    assert problems(open_folder()) == []


# ------------------------------------------------------------------------------------------------------------ in doubt


class Unsure(ObjectStore):
    """Fails at a page's creation: before it, or after it, with an error of some kind."""

    def __init__(self, store: ObjectStore, error: Exception, *, is_applied: bool) -> None:
        super().__init__(store.fs, store.root)
        self._store, self._error, self._is_applied = store, error, is_applied

    def create(self, name: str, content: bytes) -> None:
        if "/page-" not in name:
            self._store.create(name, content)
            return
        if self._is_applied:
            self._store.create(name, content)
        raise self._error


@pytest.mark.parametrize("error", [TimeoutError(), FileExistsError(), OSError("reset")])
def test_a_put_in_doubt_that_was_applied_is_found(store: ObjectStore, error: Exception) -> None:
    feed = destination(Unsure(store, error, is_applied=True))
    feed.get_or_create_cursor()
    assert feed.load_page(cut(0, 5, 10)) == 5
    assert feed.load_page(cut(5, 5, 10)) == 5
    assert stored_ids(store) == ids(0, 10)


def test_a_put_in_doubt_that_was_not_applied_is_an_error_and_the_next_run_loads_the_page(store: ObjectStore) -> None:
    feed = destination(Unsure(store, TimeoutError("no response"), is_applied=False))
    feed.get_or_create_cursor()
    with pytest.raises(TimeoutError, match="no response"):
        feed.load_page(cut(0, 5, 5))
    assert page_names(store) == []
    load(store, 5)
    assert stored_ids(store) == ids(0, 5)


# ------------------------------------------------------------------------------------------------------------ the hint


HINT = "_feed/account=acme/hint.json"


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"[]",
        b'{"cursor_from": 99999999999999999999999999, "token": "x"}',
        b'{"cursor_from": %d, "token": "x"}' % MAX_CURSOR,
        b'{"cursor_from": -1, "token": "x"}',
        b'{"cursor_from": 10, "token": "not that of the page"}',
        b'{"cursor_from": 5, "token": "x"}',
        b'{"cursor_from": "../../etc", "token": "x"}',
        b'{"cursor_from": 0, "token": "\xff"}',
        b"[" * 100_000,
    ],
)
def test_a_hint_that_is_nonsense_costs_time_and_nothing_else(store: ObjectStore, hint: bytes) -> None:
    load(store, 25)
    store.replace(HINT, hint)
    load(store, 40)
    assert stored_ids(store) == ids(0, 40)
    assert problems(store) == []


def test_a_hint_is_missing_or_old(store: ObjectStore) -> None:
    load(store, 20)
    old = store.read(HINT)
    assert old is not None
    load(store, 60)
    store.replace(HINT, old)
    assert destination(store).get_or_create_cursor() == 60
    store.delete(HINT)
    assert destination(store).get_or_create_cursor() == 60


def test_a_hint_is_written_during_a_long_run_too(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "HINT_INTERVAL", 3)
    feed = destination(folder)
    feed.get_or_create_cursor()
    for cursor in range(0, 80, 10):
        feed.load_page(cut(cursor, 10, 100))
    assert json.loads(folder.read(HINT) or b"")["cursor_from"] == 50


def test_a_run_reads_few_objects_however_long_the_chain_is(folder: ObjectStore) -> None:
    load(folder, 200, size=2)
    calls: list[str] = []

    class Counting(type(folder)):  # type: ignore[misc]
        def read(self, name: str, *limits: int | None) -> bytes | None:
            calls.append(name)
            return super().read(name, *limits)

    assert destination(Counting(folder.fs, folder.root)).get_or_create_cursor() == 200
    assert len(calls) <= 5


# -------------------------------------------------------------------------------------------------- reset and rebuild


def test_a_reset_deletes_the_pages_from_that_cursor_on_and_the_feed_is_read_again(store: ObjectStore) -> None:
    load(store, 50)
    feed = open_maintenance(store, "acme")
    assert feed.reset(25) == (50, 20)
    assert stored_ids(store) == ids(0, 20)
    assert feed.read_cursor() == 20
    load(store, 50, size=7)
    assert stored_ids(store) == ids(0, 50)
    assert feed.reset(0) == (50, 0)
    assert page_names(store) == []
    load(store, 50)
    assert stored_ids(store) == ids(0, 50)
    assert problems(store) == []


def test_a_reset_forward_is_a_page_without_rows(store: ObjectStore, page_format: str) -> None:
    load(store, 20, page_format=page_format)
    feed = open_maintenance(store, "acme")
    assert feed.reset(100) == (20, 100)
    load(store, 110, page_format=page_format)
    assert stored_ids(store) == [*ids(0, 20), *ids(100, 110)]
    assert destination(store, page_format=page_format).get_or_create_cursor() == 110
    assert problems(store) == []


def test_a_reset_that_was_decided_before_another_one_skips_nothing(folder: ObjectStore) -> None:
    load(folder, 30)
    feed = open_maintenance(folder, "acme")
    assert open_maintenance(folder, "acme").reset(10, expected=30) == (30, 10)
    with pytest.raises(CursorMoved, match="no longer 30"):
        feed.reset(27, expected=30)
    load(folder, 30)
    assert stored_ids(folder) == ids(0, 30)


@pytest.mark.parametrize("to", [-1, MAX_CURSOR + 1])
def test_a_reset_refuses_what_is_not_a_cursor(folder: ObjectStore, to: int) -> None:
    load(folder, 10)
    with pytest.raises(InvalidCursor):
        open_maintenance(folder, "acme").reset(to)


def test_a_reset_that_is_killed_leaves_a_shorter_chain(folder: ObjectStore) -> None:
    class Killed(BaseException):
        pass

    class Dying(type(folder)):  # type: ignore[misc]
        left = 4

        def delete(self, name: str) -> None:
            type(self).left -= "/page-" in name
            if type(self).left < 0:
                raise Killed
            super().delete(name)

    load(folder, 100)
    with pytest.raises(Killed):
        open_maintenance(Dying(folder.fs, folder.root), "acme").reset(0)
    assert stored_ids(folder) == ids(0, 60)
    assert problems(folder) == []
    load(folder, 100)
    assert stored_ids(folder) == ids(0, 100)


def test_a_reader_that_a_reset_overtakes_takes_its_page_back(store: ObjectStore) -> None:
    load(store, 30)
    late = destination(store)
    late.get_or_create_cursor()
    open_maintenance(store, "acme").reset(10)
    with pytest.raises(CursorMoved):
        late.load_page(cut(30, 10, 40))
    assert stored_ids(store) == ids(0, 10)


def stray(store: ObjectStore) -> None:
    """Leave behind what a reader does that is killed after its put, when a reset had overtaken it."""
    late = destination(store)
    late.get_or_create_cursor()
    open_maintenance(store, "acme").reset(10)
    content = cut(30, 10, 40)
    table = objects.page_table("acme", content, late.now())
    late.chain.create(late._header(content, table), table)


def test_a_page_that_a_killed_reader_left_behind_is_refused_until_it_is_deleted(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_chain, "_STRAY_GRACE", 0.0)
    load(store, 30)
    stray(store)
    (problem,) = problems(store)
    assert f"page-{30:020d}" in problem
    with pytest.raises(StrayObjects, match=f"page-{30:020d}.*rebuild-cursor"):
        destination(store).get_or_create_cursor()
    assert open_maintenance(store, "acme").rebuild_cursor() == (10, 10)
    assert problems(store) == []
    load(store, 50, size=15)
    assert stored_ids(store) == ids(0, 50)


def test_a_reset_is_forgotten_after_a_day(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    load(folder, 30)
    open_maintenance(folder, "acme").reset(10)
    load(folder, 30)
    assert [name[:6] for name in folder.list_names("_feed/account=acme")] == ["hint.j", "reset-"]
    monkeypatch.setattr(object_chain, "RESET_MEMORY", -object_chain.RESET_MEMORY)
    load(folder, 40)
    assert folder.list_names("_feed/account=acme") == ["hint.json"]


def test_a_reset_that_a_later_one_made_void_calls_no_page_a_stray(folder: ObjectStore) -> None:
    load(folder, 50)
    feed = open_maintenance(folder, "acme")
    assert (feed.reset(30), feed.reset(10)) == ((50, 30), (30, 10))
    load(folder, 70, size=15)
    _, later = (f"_feed/account=acme/{name}" for name in resets(folder)[::-1])
    folder.delete(later)
    assert destination(folder).get_or_create_cursor() == 70
    assert feed.rebuild_cursor() == (70, 70)
    assert resets(folder) == []


def test_resets_are_forgotten_the_greatest_start_first(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    load(folder, 50)
    feed = open_maintenance(folder, "acme")
    assert (feed.reset(30), feed.reset(10)) == ((50, 30), (30, 10))
    deleted: list[str] = []

    class Noting(type(folder)):  # type: ignore[misc]
        def delete(self, name: str) -> None:
            deleted.append(name.rpartition("/")[2])
            super().delete(name)

    names = resets(folder)
    monkeypatch.setattr(object_chain, "RESET_MEMORY", -object_chain.RESET_MEMORY)
    assert destination(Noting(folder.fs, folder.root)).get_or_create_cursor() == 10
    assert deleted == names[::-1]


def resets(store: ObjectStore) -> list[str]:
    return [name for name in store.list_names("_feed/account=acme") if name.startswith("reset-")]


def test_a_page_that_is_missing_in_the_middle_is_found_and_read_again(folder: ObjectStore) -> None:
    load(folder, 50)
    folder.delete(destination(folder).chain.name(20))
    (problem,) = problems(folder)
    assert "read again from 20" in problem
    assert open_maintenance(folder, "acme").rebuild_cursor() == (50, 20)
    load(folder, 50)
    assert stored_ids(folder) == ids(0, 50)
    assert problems(folder) == []


def expire(store: ObjectStore, *cursors: int) -> None:
    """Delete pages, as a lifecycle rule does."""
    for cursor in cursors:
        store.delete(destination(store).chain.name(cursor))


def test_a_feed_whose_older_pages_expired_goes_on_from_the_newest(store: ObjectStore) -> None:
    load(store, 40)
    expire(store, 0, 10, 20)
    load(store, 50)
    assert stored_ids(store) == ids(30, 50)
    (problem,) = problems(store)
    assert "no page before the one with the cursor 30" in problem
    with pytest.raises(MissingPages, match="are gone"):
        open_maintenance(store, "acme").rebuild_cursor()
    assert open_maintenance(store, "acme").status().events == 50
    assert open_maintenance(store, "acme").reset(45) == (50, 40)
    load(store, 60)
    assert stored_ids(store) == ids(30, 60)
    assert problems(store) == []


@pytest.mark.parametrize("gone", [[0], [20], [0, 20], [0, 10]])
def test_missing_pages_without_a_hint_are_refused_and_a_reset_goes_on_without_them(
    store: ObjectStore, gone: list[int]
) -> None:
    load(store, 50)
    expire(store, *gone)
    store.delete(HINT)
    left = stored_ids(store)
    feed = open_maintenance(store, "acme")
    with pytest.raises(MissingPages, match="reset --to 50"):
        destination(store).get_or_create_cursor()
    with pytest.raises(MissingPages, match=f"cursor {gone[0]} is gone"):
        feed.status()
    assert stored_ids(store) == left
    assert feed.reset(50) == (None, 50)
    load(store, 60)
    store.delete(HINT)
    assert destination(store).get_or_create_cursor() == 60
    assert stored_ids(store) == [*left, *ids(50, 60)]


def test_a_reset_after_missing_pages_deletes_from_there_on(folder: ObjectStore) -> None:
    load(folder, 50)
    expire(folder, 0)
    folder.delete(HINT)
    assert open_maintenance(folder, "acme").reset(35) == (None, 30)
    load(folder, 60)
    assert stored_ids(folder) == ids(10, 60)
    assert problems(folder) == []


def test_a_feed_whose_pages_are_all_gone_does_not_start_anew(store: ObjectStore) -> None:
    load(store, 30)
    destination(store).log_poll(PollRecord(cursor_from=30))
    expire(store, 0, 10, 20)
    for _ in ("by the hint", "by the polls"):
        with pytest.raises(MissingPages, match="has no page"):
            destination(store).get_or_create_cursor()
        store.delete(HINT)
    assert open_maintenance(store, "acme").reset(30) == (None, 30)
    load(store, 40)
    assert stored_ids(store) == ids(30, 40)
    assert problems(store) == []


def test_maintenance_of_a_feed_that_was_never_read(folder: ObjectStore) -> None:
    load(folder, 5)
    with pytest.raises(UnknownFeed, match="there is: acme"):
        open_maintenance(folder, "other").read_cursor()
    destination(folder, "idle").load_page(page(0))
    status = open_maintenance(folder, "idle").status()
    assert (status.cursor, status.caught_up, status.status) == (0, True, 200)


def test_rejected_lines_that_are_valid_by_now_are_not_rewritten(folder: ObjectStore, page_format: str) -> None:
    feed = destination(folder, page_format=page_format)
    feed.get_or_create_cursor()
    feed.load_page(page(0, event(0), b"junk"))
    assert open_maintenance(folder, "acme").replay_rejected_lines() == (0, 1)
    refused = page(2, b"junk too")
    line = type(refused.rejected[0])(1, event(9), "an earlier version did not know this")
    feed.load_page(type(refused)(2, 3, False, (), (line,)))
    with pytest.raises(PagesNotRewritten, match=r"1 of 2 .* --to 2"):
        open_maintenance(folder, "acme").replay_rejected_lines()


# ---------------------------------------------------------------------------------------------------- foreign objects


@pytest.mark.parametrize("content", [b"", b"x", b"PAR1" * 5, b"PAR1" + b"\xff" * 40 + b"PAR1", b"\x1f\x8b\x08\x04OT"])
def test_an_object_that_is_not_a_page_is_named(store: ObjectStore, page_format: str, content: bytes) -> None:
    load(store, 20, page_format=page_format)
    bad = destination(store, page_format=page_format).chain.name(20)
    store.replace(bad, content)
    with pytest.raises(InvalidObject, match=f"page-{20:020d}"):
        destination(store, page_format=page_format).get_or_create_cursor()
    assert any(f"page-{20:020d}" in each for each in problems(store))


def test_a_page_that_is_cut_off_is_named(folder: ObjectStore, page_format: str) -> None:
    load(folder, 30, page_format=page_format)
    bad = destination(folder, page_format=page_format).chain.name(10)
    folder.replace(bad, (folder.read(bad) or b"")[:-20])
    assert any(bad in each for each in problems(folder))


@pytest.mark.parametrize("header", [b'{"version": 1, "account": "\xff"}', b"[" * 60_000, b"", b'{"version": "9"}'])
def test_a_header_that_is_nonsense_is_named_and_stops_nothing_outside_the_chain(
    folder: ObjectStore, header: bytes
) -> None:
    load(folder, 20, page_format="ndjson")
    chain = destination(folder, page_format="ndjson").chain
    extra = b"OT" + struct.pack("<H", len(header)) + header
    content = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff" + struct.pack("<H", len(extra)) + extra
    folder.replace(chain.name(15), content)
    folder.delete(HINT)
    load(folder, 30, page_format="ndjson")
    assert stored_ids_of(chain, 0, 10, 20) == ids(0, 30)
    folder.replace(chain.name(10), content)
    folder.replace(chain.name(20), (folder.read(chain.name(20)) or b"")[:-20])
    found = problems(folder)
    assert all(any(f"page-{cursor:020d}" in each for each in found) for cursor in (10, 15, 20))
    folder.delete(HINT)
    with pytest.raises(InvalidObject, match=f"page-{10:020d}"):
        destination(folder, page_format="ndjson").get_or_create_cursor()


def stored_ids_of(chain: object_chain.PageChain, *cursors: int) -> list[str | None]:
    contents = [chain.store.read(chain.name(cursor)) or b"" for cursor in cursors]
    return [row.event_id for content in contents for row in chain.format.read_rows(content)]


def test_a_folder_in_place_of_a_hint_or_a_page_is_named_or_skipped(folder: ObjectStore) -> None:
    load(folder, 20)
    folder.delete(HINT)
    Path(folder.path(HINT)).mkdir()
    load(folder, 30)
    Path(folder.path(destination(folder).chain.name(30))).mkdir()
    with pytest.raises(InvalidObject, match=f"page-{30:020d}"):
        destination(folder).get_or_create_cursor()


def test_a_page_of_another_place_is_refused(folder: ObjectStore, page_format: str) -> None:
    load(folder, 20, page_format=page_format)
    load(folder, 20, account="other", page_format=page_format)
    chain, other = (destination(folder, name, page_format).chain for name in ("acme", "other"))
    for copied in (chain.name(10), other.name(10)):
        folder.replace(chain.name(20), folder.read(copied) or b"")
        with pytest.raises(InvalidObject, match="renamed or copied"):
            destination(folder, page_format=page_format).get_or_create_cursor()


def test_a_page_of_a_newer_version_is_refused(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    load(folder, 20)
    monkeypatch.setattr(object_chain, "HEADER_VERSION", 0)
    with pytest.raises(SchemaTooNew, match="newer version"):
        destination(folder).get_or_create_cursor()


def test_objects_of_others_beside_the_pages_are_left_alone_and_reported(folder: ObjectStore) -> None:
    load(folder, 20)
    for name in ("_SUCCESS", "page-20.parquet", "page-99999999999999999999.parquet", "notes.txt"):
        folder.replace(f"account=acme/{name}", b"someone's")
    load(folder, 30)
    (problem,) = problems(folder)
    assert "_SUCCESS" in problem
    assert len(page_names(folder)) == 7


def test_a_folder_with_the_name_of_a_page_is_none(store: ObjectStore) -> None:
    load(store, 30)
    store.replace(f"account=acme/page-{25:020d}.parquet/part-0.parquet", b"someone's")
    (problem,) = problems(store)
    assert f"page-{25:020d}.parquet/" in problem
    feed = open_maintenance(store, "acme")
    assert feed.rebuild_cursor() == (30, 30)
    assert feed.reset(20) == (30, 20)
    load(store, 30)
    assert list_accounts(store) == ["acme"]


def test_a_reset_whose_deletions_have_no_effect_ends(folder: ObjectStore) -> None:
    class Holding(type(folder)):  # type: ignore[misc]
        def delete(self, name: str) -> None:
            if "/page-" not in name:
                super().delete(name)

    load(folder, 30)
    with pytest.raises(StrayObjects, match="still there after"):
        open_maintenance(Holding(folder.fs, folder.root), "acme").reset(10)


class Careless(MemoryFileSystem):
    """A file system that overwrites, whatever it is told."""

    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value, **options)


class Careful(MemoryFileSystem):
    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012


def test_a_storage_that_overwrites_is_refused_at_the_first_run() -> None:
    store = ObjectStore(Careless(), "/events")
    with pytest.raises(UnreliableStorage, match="overwrites an object"):
        destination(store).get_or_create_cursor()
    assert store.list_names("_probe") == []


def test_any_file_system_that_refuses_will_do() -> None:
    store = ObjectStore(Careful(), "/events")
    load(store, 30)
    assert stored_ids(store) == ids(0, 30)
    assert problems(store) == []


def test_a_local_file_is_whole_before_it_has_its_name(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: str, target: str) -> None:
        assert not Path(target).exists()
        raise OSError(1, "Operation not permitted")

    load(folder, 10)
    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(UnreliableStorage, match="hard link"):
        load(folder, 20)
    assert page_names(folder) == [f"page-{0:020d}.parquet"]
    assert folder.list_names("_tmp") == []


def test_files_that_a_killed_process_left_are_deleted_after_an_hour(folder: ObjectStore) -> None:
    load(folder, 10)
    old, new = (Path(folder.root, "_tmp", name) for name in ("old", "new"))
    for file in (old, new):
        file.write_bytes(b"half a pa")
    os.utime(old, (0, 0))
    load(folder, 20)
    assert folder.list_names("_tmp") == ["new"]


# ------------------------------------------------------------------------------------------------------- log of polls


def test_the_log_of_polls_is_bounded(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_polls, "MAX_POLLS", 6)
    monkeypatch.setattr(object_polls, "_LEFT", 3)
    feed = destination(folder)
    for number in range(10):
        feed.log_poll(PollRecord(cursor_from=0, status=500 + number, note="x" * 900))
    assert 3 <= len(folder.list_names("_polls/account=acme")) <= 6
    status = open_maintenance(folder, "acme").status()
    assert (status.status, status.note) == (509, "x" * 500)


def test_a_cursor_far_beyond_the_lines_is_accepted_when_it_comes_again_and_a_reset_forgets_the_claim(
    folder: ObjectStore,
) -> None:
    load(folder, 5)
    far = page(5, *events(5, 8), next_cursor=5_000)
    assert not destination(folder).accepts_cursor(far)
    assert destination(folder).accepts_cursor(far)
    open_maintenance(folder, "acme").reset(5)
    assert not destination(folder).accepts_cursor(far)


def test_a_reset_that_fails_has_forgotten_the_claims(folder: ObjectStore) -> None:
    class Failing(type(folder)):  # type: ignore[misc]
        def delete(self, name: str) -> None:
            if "/page-" in name:
                raise OSError("no connection")
            super().delete(name)

    load(folder, 30)
    destination(folder).log_poll(PollRecord(action=CLAIM, cursor_from=20, cursor_to=5_000))
    with pytest.raises(OSError, match="no connection"):
        open_maintenance(Failing(folder.fs, folder.root), "acme").reset(20)
    assert destination(folder).greatest_claim(20) == 0


def test_polls_that_are_nonsense_are_passed_over(folder: ObjectStore) -> None:
    load(folder, 5)
    for number, content in enumerate((b"", b"\xff", b"[]", b'{"cursor_from": 5, "cursor_to": "9"}')):
        folder.replace(f"_polls/account=acme/2099-{CLAIM}-{number}.json", content)
    assert destination(folder).greatest_claim(5) == 0
    assert open_maintenance(folder, "acme").status().cursor == 5


def test_the_greatest_excess_is_that_of_the_whole_chain(folder: ObjectStore) -> None:
    load(folder, 5)
    feed = destination(folder)
    feed.get_or_create_cursor()
    feed.load_page(page(5, *events(5, 8), next_cursor=50))
    feed.load_page(cut(50, 10, 60))
    again = destination(folder)
    again.get_or_create_cursor()
    assert again.greatest_excess() == 42


# ------------------------------------------------------------------------------------------------------- read back


def test_duckdb_and_pyarrow_read_the_folder(folder: ObjectStore) -> None:
    load(folder, 30)
    load(folder, 10, account="b/c")
    destination(folder).log_poll(PollRecord(cursor_from=0, note="beside the pages"))
    files = f"{folder.root}/account=*/*.parquet"
    query = "SELECT account, count(*), count(DISTINCT event_id), max(cursor_from) FROM read_parquet(?, {}) GROUP BY ALL"
    for options in ("hive_partitioning = true", "hive_partitioning = false"):
        found = duckdb.execute(query.format(options), [files]).fetchall()
        assert sorted(found) == [("acme", 30, 30, 20), ("b/c", 10, 10, 0)]
    table = ds.dataset(folder.root, format="parquet", partitioning="hive").to_table()
    assert table.num_rows == 40
    assert set(table["account"].to_pylist()) == {"acme", "b/c"}


def test_duckdb_reads_the_json_lines(folder: ObjectStore) -> None:
    load(folder, 30, page_format="ndjson")
    open_maintenance(folder, "acme").reset(100)
    files = f"{folder.root}/account=*/*.ndjson.gz"
    query = "SELECT count(*), count(DISTINCT event_id), min(occurred_at) FROM read_json(?, format = 'nd')"
    counts = duckdb.execute(query, [files]).fetchone()
    assert counts is not None
    assert counts[:2] == (30, 30)
    assert str(counts[2]).startswith("2026-01-01")
