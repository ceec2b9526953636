"""The event feed as objects in a folder: local files and an S3 server."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from outbound_transfer.lake import object_page
from outbound_transfer.lake.object_page import PageHeader, encode_page
from outbound_transfer.lake.object_store import ObjectStore, open_store
from outbound_transfer.lake.objects import list_accounts
from outbound_transfer.lake.rows import SCHEMA
from outbound_transfer.warehouse.errors import (
    CursorMoved,
    InvalidCursor,
    InvalidName,
    SchemaTooNew,
    UnknownFeed,
    UnsupportedWarehouse,
)
from support.feed_pages import event, events, page
from support.object_folders import (
    OpenStore,
    cut,
    destination,
    local_store,
    maintenance,
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


def ids(start: int, end: int) -> list[str]:
    return [f"e{number}" for number in range(start, end)]


def load(store: ObjectStore, last: int, size: int = 10, account: str = "acme") -> None:
    """Load the feed up to ``last``, in a run of its own."""
    feed = destination(store, account)
    cursor = feed.get_or_create_cursor()
    while cursor < last:
        feed.load_page(cut(cursor, size, last))
        cursor = min(cursor + size, last)


def problems(store: ObjectStore, account: str = "acme") -> list[str]:
    return list(maintenance(store, account).find_problems())


def page_path(cursor: int, account: str = "acme") -> str:
    return f"account={account}/page-{cursor:020d}.parquet"


def write(store: ObjectStore, name: str, content: bytes) -> None:
    """Put or replace an object, as somebody else does."""
    store.fs.makedirs(store.path(name).rpartition("/")[0], exist_ok=True)
    store.fs.pipe_file(store.path(name), content)


# ----------------------------------------------------------------------------------------------------------- loading


def test_pages_are_loaded_and_the_next_run_goes_on_from_the_objects(store: ObjectStore) -> None:
    load(store, 25)
    assert destination(store).get_or_create_cursor() == 25
    load(store, 30)
    assert page_names(store) == [f"page-{cursor:020d}.parquet" for cursor in (0, 10, 20, 25)]
    assert stored_ids(store) == ids(0, 30)
    assert problems(store) == []


def test_rejected_lines_and_an_event_that_is_there_twice(store: ObjectStore) -> None:
    feed = destination(store)
    feed.get_or_create_cursor()
    lines = (event(1), b"junk \xff", event(2), event(1), event(3, data={"text": "Grüße 🎉 日本"}))
    assert feed.load_page(page(0, *lines)) == 3
    rows = stored_rows(store)
    assert [(row["line_number"], row["event_id"]) for row in rows] == [(1, "e1"), (2, None), (3, "e2"), (5, "e3")]
    assert json.loads(rows[3]["data"]) == {"text": "Grüße 🎉 日本"}
    assert rows[1]["rejected_reason"]
    status = maintenance(store).status()
    assert (status.cursor, status.events, status.rejected, status.caught_up) == (5, 3, 1, True)
    assert status.occurred_at == "2026-01-01T00:00:00.000000Z"


def test_events_of_one_id_and_other_content_are_all_there(folder: ObjectStore) -> None:
    feed = destination(folder)
    feed.get_or_create_cursor()
    assert feed.load_page(page(0, event(1), event(1, type="other"), event(1), event(2))) == 3
    feed.load_page(page(4, event(2), event(3)))
    assert [row["type"] for row in stored_rows(folder) if row["event_id"] == "e1"] == ["transfer_sent", "other"]
    assert stored_ids(folder) == ["e1", "e1", "e2", "e2", "e3"]


def test_the_bytes_of_a_rejected_line_come_back(folder: ObjectStore) -> None:
    feed = destination(folder)
    feed.get_or_create_cursor()
    feed.load_page(page(0, b"junk \xff\x00", event(1)))
    rows = [(row["event_id"], row["rejected_line"]) for row in stored_rows(folder)]
    assert rows == [(None, b"junk \xff\x00"), ("e1", None)]


def test_a_cursor_that_moves_without_lines_is_an_object_and_one_that_does_not_is_none(
    store: ObjectStore,
) -> None:
    feed = destination(store)
    feed.get_or_create_cursor()
    assert feed.load_page(page(0)) == 0
    assert page_names(store) == []
    feed.load_page(page(0, next_cursor=7, has_more=True))
    assert len(page_names(store)) == 1
    assert feed.load_page(page(7)) == 0
    again = destination(store)
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


class Killed(BaseException):
    """Ends what runs, as a kill does: nothing that the package catches."""


class Deadly(ObjectStore):
    """Kills at some of the calls that change something: before or after them."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store.fs, store.root)
        self._store = store

    def create(self, name: str, content: bytes) -> None:
        self._step(lambda: self._store.create(name, content))

    def delete(self, name: str) -> None:
        self._step(lambda: self._store.delete(name))

    def _step(self, run: Callable[[], None]) -> None:
        is_killed, is_applied = random.random() < 0.15, random.random() < 0.5
        if is_applied or not is_killed:
            run()
        if is_killed:
            raise Killed


def drain(open_folder: OpenStore, last: int, watch: Callable[[ObjectStore], ObjectStore] = lambda store: store) -> None:
    """Load the feed beside others, each page cut in another size."""
    store = watch(open_folder())
    while True:
        feed = destination(store)
        try:
            cursor = feed.get_or_create_cursor()
            while cursor < last:
                size = random.randrange(3, 12)
                feed.load_page(cut(cursor, size, last))
                cursor = min(cursor + size, last)
        except (CursorMoved, Killed):
            continue
        except InvalidCursor:  # a reader has not taken its page back yet
            if isinstance(store, Deadly):  # it may have been killed before it could
                maintenance(open_folder()).reset(0)
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
    assert second.get_or_create_cursor() == 5
    assert stored_ids(store) == ids(0, 5)


@pytest.mark.slow
@pytest.mark.parametrize("watch", [lambda store: store, Deadly], ids=["whole", "killed"])
def test_resets_beside_readers_lose_and_double_nothing(
    open_folder: OpenStore, run_at_once: RunAtOnce, watch: Callable[[ObjectStore], ObjectStore]
) -> None:
    def reset() -> None:
        feed = maintenance(watch(open_folder()))  # it is killed, too, and one of the readers
        for _ in range(6):
            time.sleep(random.uniform(0.02, 0.1))
            try:
                if position := feed.read_cursor():  # beyond it, a reset would skip events
                    feed.reset(random.randrange(position))
            except (CursorMoved, UnknownFeed, Killed, InvalidCursor):
                continue

    readers = [lambda: drain(open_folder, 120, watch), *[lambda: drain(open_folder, 120)] * 2]
    assert run_at_once([*readers, reset]) == []
    drain(open_folder, 120, Deadly if watch is Deadly else lambda store: store)
    assert stored_ids(open_folder()) == ids(0, 120)
    assert problems(open_folder()) == []


def test_a_page_that_a_reader_takes_back_after_a_reset_leaves_a_feed_to_read(store: ObjectStore) -> None:
    feed = destination(store)
    feed.get_or_create_cursor(), feed.load_page(cut(0, 5, 9))
    feed.get_or_create_cursor(), feed.load_page(cut(5, 4, 9))
    name = feed.page_name(5)
    content = store.read(name)
    late = [content] if content else []

    class Late(ObjectStore):
        def list_names(self, folder: str = "") -> list[str]:
            names = super().list_names(folder)
            if folder and folder in name and not names and late:
                self.create(name, late.pop())
            return names

    maintenance(Late(store.fs, store.root)).reset(0)
    assert not late
    store.delete(name)
    assert destination(store).get_or_create_cursor() == 0


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


def test_a_run_reads_few_objects_however_many_there_are(folder: ObjectStore) -> None:
    load(folder, 200, size=2)
    destination(folder).get_or_create_cursor()
    calls: list[str] = []

    class Counting(type(folder)):  # type: ignore[misc]
        def read(self, name: str) -> bytes | None:
            calls.append(name)
            return super().read(name)

    assert destination(Counting(folder.fs, folder.root)).get_or_create_cursor() == 200
    assert calls == [page_path(198), page_path(196), "_feed/account=acme/loaded"]


# -------------------------------------------------------------------------------------------------------------- resets


def test_a_reset_deletes_the_pages_from_that_cursor_on_and_the_feed_is_read_again(store: ObjectStore) -> None:
    load(store, 50)
    feed = maintenance(store)
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


def test_a_reset_forward_is_a_page_without_rows(store: ObjectStore) -> None:
    load(store, 20)
    assert maintenance(store).reset(100) == (20, 100)
    load(store, 110)
    assert stored_ids(store) == [*ids(0, 20), *ids(100, 110)]
    assert problems(store) == []


def test_a_reset_forward_skips_no_page_that_a_reader_puts_meanwhile(folder: ObjectStore) -> None:
    load(folder, 20)
    feed = destination(folder)
    with pytest.raises(CursorMoved):
        feed.skip(10, 100)
    assert (feed.get_or_create_cursor(), stored_ids(folder)) == (20, ids(0, 20))


def test_a_reset_that_was_decided_before_another_one_skips_nothing(folder: ObjectStore) -> None:
    load(folder, 30)
    feed = maintenance(folder)
    assert maintenance(folder).reset(10, expected=30) == (30, 10)
    with pytest.raises(CursorMoved, match="no longer 30"):
        feed.reset(27, expected=30)
    load(folder, 30)
    assert stored_ids(folder) == ids(0, 30)


@pytest.mark.parametrize("to", [0, 40])
def test_a_reset_that_is_killed_leaves_the_first_pages_and_the_feed_goes_on(folder: ObjectStore, to: int) -> None:
    class Dying(type(folder)):  # type: ignore[misc]
        left = 3

        def delete(self, name: str) -> None:
            if not self.left:
                raise Killed
            self.left -= 1
            super().delete(name)

    load(folder, 100)
    with pytest.raises(Killed):
        maintenance(Dying(folder.fs, folder.root)).reset(to)
    assert maintenance(folder).read_cursor() == 70
    load(folder, 100)
    assert stored_ids(folder) == ids(0, 100)
    assert problems(folder) == []


def test_a_reset_deletes_what_a_reader_puts_meanwhile(folder: ObjectStore) -> None:
    load(folder, 30)
    late = destination(folder)
    late.get_or_create_cursor()

    class Busy(type(folder)):  # type: ignore[misc]
        def delete(self, name: str) -> None:
            if name == page_path(20):
                late.load_page(cut(30, 10, 40))
            super().delete(name)

    maintenance(Busy(folder.fs, folder.root)).reset(10)
    assert stored_ids(folder) == ids(0, 10)


def test_a_reader_that_a_reset_overtakes_takes_its_page_back(store: ObjectStore) -> None:
    load(store, 30)
    late = destination(store)
    late.get_or_create_cursor()
    maintenance(store).reset(10)
    with pytest.raises(CursorMoved):
        late.load_page(cut(30, 10, 40))
    assert stored_ids(store) == ids(0, 10)


def test_a_reset_beside_a_run_that_begins_leaves_a_feed_that_starts_anew(folder: ObjectStore) -> None:
    load(folder, 10)

    class Overtaken(type(folder)):  # type: ignore[misc]
        def create(self, name: str, content: bytes) -> None:
            maintenance(folder).reset(0)
            super().create(name, content)

    with pytest.raises(CursorMoved):
        destination(Overtaken(folder.fs, folder.root)).get_or_create_cursor()
    load(folder, 10)
    assert stored_ids(folder) == ids(0, 10)


def test_a_page_does_not_follow_one_that_a_reset_has_replaced(folder: ObjectStore) -> None:
    load(folder, 30)
    late = destination(folder)
    late.get_or_create_cursor()
    maintenance(folder).reset(20)
    load(folder, 35, size=15)
    with pytest.raises(CursorMoved):
        late.load_page(cut(30, 10, 40))
    load(folder, 40)
    assert stored_ids(folder) == ids(0, 40)


@pytest.mark.parametrize("to", [0, 10])
def test_a_page_of_a_reader_that_a_reset_overtook_and_that_was_killed_is_not_followed(
    store: ObjectStore, to: int
) -> None:
    load(store, 30)
    maintenance(store).reset(to)
    late = PageHeader(account="acme", cursor_from=30, cursor_to=40, has_more=True, polled_at="")
    store.create(page_path(30), encode_page(late, SCHEMA.empty_table()))
    with pytest.raises(InvalidCursor, match="the one before the newest is"):
        load(store, 50)
    (problem,) = problems(store)
    assert f"from the cursor {to} to 30 are gone, or are there twice. `feed reset --to 30`" in problem
    maintenance(store).reset(to)
    load(store, 50)
    assert stored_ids(store) == ids(0, 50)
    assert problems(store) == []


# -------------------------------------------------------------------------------------------------------- missing pages


@pytest.mark.parametrize(("to", "cursor"), [(30, 20), (20, 10)])
def test_a_page_that_is_missing_in_the_middle_is_found_and_read_again(
    folder: ObjectStore, to: int, cursor: int
) -> None:
    load(folder, 50)
    folder.delete(page_path(20))
    (problem,) = problems(folder)
    assert "from the cursor 20 to 30 are gone, or are there twice. `feed reset --to 30`" in problem
    assert maintenance(folder).reset(to) == (50, cursor)
    load(folder, 50)
    assert stored_ids(folder) == ids(0, 50)
    assert problems(folder) == []


def test_the_page_before_the_newest_is_missed_at_once(folder: ObjectStore) -> None:
    load(folder, 50)
    folder.delete(page_path(30))
    with pytest.raises(InvalidCursor):
        load(folder, 60)
    assert maintenance(folder).reset(40) == (None, 30)
    load(folder, 60)
    assert stored_ids(folder) == ids(0, 60)


def test_a_feed_whose_older_pages_expired_goes_on_from_the_newest_two(store: ObjectStore) -> None:
    load(store, 50)
    for cursor in (0, 10, 20):
        store.delete(page_path(cursor))
    load(store, 60)
    assert stored_ids(store) == ids(30, 60)
    (problem,) = problems(store)
    assert "the pages from the cursor 0 to 30 are gone" in problem
    assert maintenance(store).status().events == 60
    assert maintenance(store).reset(55) == (60, 50)
    load(store, 60)
    assert stored_ids(store) == ids(30, 60)
    assert maintenance(store).reset(45) == (60, 30)
    load(store, 60)
    assert stored_ids(store) == ids(30, 60)
    assert problems(store) == []


def test_the_newest_page_is_read_again_when_it_is_gone(folder: ObjectStore) -> None:
    load(folder, 30)
    folder.delete(page_path(20))
    load(folder, 30)
    assert stored_ids(folder) == ids(0, 30)


def test_a_feed_whose_pages_are_all_gone_does_not_start_anew(store: ObjectStore) -> None:
    load(store, 20)
    load(store, 30)
    maintenance(store).reset(0)
    for _ in range(2):
        load(store, 30)
    for name in page_names(store):
        store.delete(f"account=acme/{name}")
    with pytest.raises(InvalidCursor, match="reset --to N"):
        destination(store).get_or_create_cursor()
    assert maintenance(store).reset(30) == (None, 30)
    load(store, 40)
    assert stored_ids(store) == ids(30, 40)
    assert problems(store) == []


def test_maintenance_of_a_feed_that_was_never_read(folder: ObjectStore) -> None:
    load(folder, 5)
    with pytest.raises(UnknownFeed, match="there is: acme"):
        maintenance(folder, "other").read_cursor()
    with pytest.raises(UnknownFeed, match="there is: acme"):
        maintenance(folder, "other").reset(0)
    destination(folder, "idle").bind_account("idle.example.com")
    status = maintenance(folder, "idle").status()
    assert (status.cursor, status.caught_up, status.status) == (0, None, None)


def test_pages_are_not_rewritten_and_are_the_cursor(folder: ObjectStore) -> None:
    feed = destination(folder)
    feed.get_or_create_cursor()
    feed.load_page(page(0, event(0), b"junk"))
    assert maintenance(folder).rebuild_cursor() == (2, 2)
    assert len(page_names(folder)) == 1


# ----------------------------------------------------------------------------------------------------- foreign objects


@pytest.mark.parametrize("content", [b"", b"x", b"PAR1" * 5, b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_an_object_that_is_not_a_page_is_named_and_a_reset_deletes_it(store: ObjectStore, content: bytes) -> None:
    load(store, 20)
    write(store, page_path(20), content)
    with pytest.raises(InvalidCursor, match=f"page-{20:020d}.*reset --to 20"):
        destination(store).get_or_create_cursor()
    assert any(f"page-{20:020d}" in each for each in problems(store))
    assert maintenance(store).reset(20) == (None, 20)
    load(store, 30)
    assert stored_ids(store) == ids(0, 30)


def test_a_page_that_is_cut_off_is_named(folder: ObjectStore) -> None:
    load(folder, 30)
    content = folder.read(page_path(10)) or b""
    for damaged in (content[:-20], content[:50] + b"\xff" * 500 + content[550:]):
        write(folder, page_path(10), damaged)
        assert any(page_path(10) in each for each in problems(folder))


@pytest.mark.parametrize(
    "header", [b'{"version": 1, "account": "\xff"}', b"[" * 60_000, b"", b'{"version": "9"}', b"[]"]
)
def test_a_header_that_is_nonsense_is_named(folder: ObjectStore, header: bytes) -> None:
    load(folder, 10)
    sink = io.BytesIO()
    pq.write_table(SCHEMA.empty_table().replace_schema_metadata({object_page.HEADER_KEY: header}), sink)
    write(folder, page_path(10), sink.getvalue())
    with pytest.raises(InvalidCursor, match=page_path(10)):
        destination(folder).get_or_create_cursor()


def test_a_page_of_another_place_is_refused(folder: ObjectStore) -> None:
    load(folder, 20)
    load(folder, 20, account="other")
    for copied in (page_path(10), page_path(10, account="other")):
        write(folder, page_path(20), folder.read(copied) or b"")
        with pytest.raises(InvalidCursor, match="renamed or copied"):
            destination(folder).get_or_create_cursor()


def test_a_page_of_a_newer_version_is_refused(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    load(folder, 20)
    monkeypatch.setattr(object_page, "HEADER_VERSION", 0)
    with pytest.raises(SchemaTooNew, match="newer version"):
        destination(folder).get_or_create_cursor()


def test_objects_of_others_beside_the_pages_are_left_alone_and_reported(store: ObjectStore) -> None:
    load(store, 20)
    names = ("_SUCCESS", "page-20.parquet", f"page-000000-{20:020d}.parquet", "part/part-0.parquet")
    for name in names:
        write(store, f"account=acme/{name}", b"someone's")
    load(store, 30)
    (problem,) = problems(store)
    assert "_SUCCESS" in problem
    assert maintenance(store).reset(10) == (30, 10)
    assert len(page_names(store)) == 1 + len(names)
    assert list_accounts(store) == ["acme"]


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
    with pytest.raises(UnsupportedWarehouse, match="overwrites an object"):
        destination(store).get_or_create_cursor()
    assert store.list_names("_probe") == []


def test_any_file_system_that_refuses_will_do() -> None:
    store = ObjectStore(Careful(), "/events")
    load(store, 30)
    assert stored_ids(store) == ids(0, 30)
    assert problems(store) == []


def test_a_local_file_is_whole_before_it_has_its_name(folder: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        assert not target.exists()
        raise PermissionError(1, "Operation not permitted", str(source), None, str(target))

    load(folder, 10)
    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(PermissionError, match="_tmp/.* -> .*account=acme/"):
        load(folder, 20)
    assert page_names(folder) == [f"page-{0:020d}.parquet"]
    assert folder.list_names("_tmp") == []


# ------------------------------------------------------------------------------------------------------- read back


def test_duckdb_and_pyarrow_read_the_folder(folder: ObjectStore) -> None:
    load(folder, 30)
    load(folder, 10, account="b/c")
    files = f"{folder.root}/account=*/*.parquet"
    query = "SELECT account, count(*), count(DISTINCT event_id), max(cursor_from) FROM read_parquet(?, {}) GROUP BY ALL"
    for options in ("hive_partitioning = true", "hive_partitioning = false"):
        found = duckdb.execute(query.format(options), [files]).fetchall()
        assert sorted(found) == [("acme", 30, 30, 20), ("b/c", 10, 10, 0)]
    table = ds.dataset(folder.root, format="parquet", partitioning="hive").to_table()
    assert table.num_rows == 40
    assert set(table["account"].to_pylist()) == {"acme", "b/c"}
