"""The ingest into objects, killed (SIGKILL) at every call of the file system (:mod:`resilience.crash_ingest.ingest`).

``python -m resilience.crash_ingest.objects`` prints a table for local files and for an S3 server; with ``--soak N``, N
events are loaded while calls fail and the process is killed at random.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outbound_transfer.lake import object_store
from outbound_transfer.lake.object_maintenance import open_maintenance
from outbound_transfer.lake.object_store import ObjectStore
from resilience.crash_ingest.ingest import MOMENTS, PAGES, Account, Killer, in_a_process
from support.object_folders import OpenStore, destination, local_store, s3_store, stored_rows

#: Calls of a file system that are steps; the others of `os` are those of local files.
_FILE_SYSTEM = ("cat_file", "pipe_file", "rm_file", "ls")
_OS = ("link", "unlink", "replace", "fsync", "open", "close")


@dataclass(frozen=True)
class ObjectTarget:
    """A folder of objects: how to open it in a process, and how to make it empty."""

    open: OpenStore
    empty: Callable[[], None]


class _Watched:
    """A file system, or the module ``os``, that reports some of its calls as steps."""

    def __init__(self, inner: Any, names: tuple[str, ...], killer: Killer) -> None:
        self._inner, self._names, self._killer = inner, names, killer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names:
            return found
        return lambda *args, **options: self._killer.step(
            f"{name} {_shown(args, options)}", lambda: found(*args, **options)
        )


def _shown(args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """What a call is about: the kind of object, and whether it is created."""
    kinds = ("_probe", "_polls", "_feed", "_tmp", "page-", "account=")
    kind = next((kind for kind in kinds if args and kind in str(args[0])), "folder")
    return f"{kind}{' create' if options.get('mode') == 'create' else ''}"


def watched(store: ObjectStore, killer: Killer) -> ObjectStore:
    """Let a killer see the calls of a store; for a process that ends with it."""
    object_store.os = _Watched(os, _OS, killer)  # type: ignore[attr-defined]
    store.fs = _Watched(store.fs, _FILE_SYSTEM, killer)
    return store


# -------------------------------------------------------------------------------------------------------- what may be


def _states() -> list[dict[str, Any]]:
    """What may be in the folder: nothing, or the first pages, whole. An event of two pages is in both objects."""
    states: list[dict[str, Any]] = [{"cursor": 0, "ids": [], "rejected": 0, "problems": 0}]
    for page in PAGES.values():
        before = states[-1]
        ids = sorted([*before["ids"], *{int(event.event_id) for event in page.events}])
        rejected = before["rejected"] + len(page.rejected)
        states.append(
            {"cursor": page.next_cursor, "ids": ids, "rejected": rejected, "problems": len(ids) - len({*ids})}
        )
    return states


STATES = _states()


def ingest(store: ObjectStore) -> None:
    """Load all pages from where the cursor is."""
    feed = destination(store)
    with feed.session():
        cursor = feed.get_or_create_cursor()
        while cursor in PAGES:
            feed.load_page(PAGES[cursor])
            cursor = PAGES[cursor].next_cursor


def reset_and_ingest(store: ObjectStore) -> None:
    """Delete all pages but the first, and load them again."""
    open_maintenance(store, "acme").reset(6)
    ingest(store)


def look(store: ObjectStore) -> dict[str, Any]:
    """What the folder holds: as a loader finds it, as the next run does, and as ``verify`` does."""
    rows = stored_rows(store)
    is_known = store.list_names("account=acme") or store.list_names("_polls")
    problems = list(open_maintenance(store, "acme").find_problems()) if is_known else []
    return {
        "cursor": open_maintenance(store, "acme").read_cursor() if is_known else 0,
        "ids": sorted(int(row["event_id"]) for row in rows if row["event_id"] is not None),
        "rejected": sum(row["rejected_line"] is not None for row in rows),
        "problems": len(problems),
    }


def asked(target: ObjectTarget) -> dict[str, Any]:
    """What the folder holds, asked in a process of its own."""
    code, said = in_a_process(lambda write: os.write(write, json.dumps(look(target.open())).encode()))
    assert code == 0, said
    found: dict[str, Any] = json.loads(said)
    return found


def kill_everywhere(
    target: ObjectTarget, moment: str, every: int = 1, work: Callable[[ObjectStore], None] = ingest
) -> Account:
    """Kill at every n-th step; which, and what was found afterwards."""
    account = Account()
    _import_all()
    for at in range(1, 10_000, every):
        target.empty()
        if work is not ingest:
            assert in_a_process(lambda _: ingest(target.open()))[0] == 0
        code, said = in_a_process(lambda write, at=at: work(watched(target.open(), Killer(at, moment, write))))  # type: ignore[misc]
        if code == 0:
            break
        if code != -signal.SIGKILL:
            account.wrong.append(f"step {at}: {said.decode()}")
            break
        _judge(account, target, said.decode(), at)
    return account


def _import_all() -> None:
    """Import once here, not in each of the many processes, what the work imports when it is done."""
    for name in ("s3fs", "outbound_transfer.client", "outbound_transfer.client.settings"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        ingest(local_store(Path(folder, "events")))
        look(local_store(Path(folder, "events")))


def _judge(account: Account, target: ObjectTarget, step: str, at: int) -> None:
    account.kills += 1
    account.steps.add(step)
    found = asked(target)
    if found not in STATES:
        account.wrong.append(f"step {at}, {step}: left {found}")
        return
    account.left[found["cursor"]] = account.left.get(found["cursor"], 0) + 1
    code, said = in_a_process(lambda _: ingest(target.open()))
    if code != 0 or asked(target) != STATES[-1]:
        account.wrong.append(f"step {at}, {step}: the next run {said.decode() or asked(target)}")


# -------------------------------------------------------------------------------------------------------------- places


def local_target(folder: Path) -> ObjectTarget:
    """Local files."""
    root = folder / "events"
    return ObjectTarget(lambda: local_store(root), lambda: shutil.rmtree(root, ignore_errors=True))


@contextmanager
def s3_target() -> Iterator[ObjectTarget]:
    """A bucket of an S3 server of its own."""
    import httpx

    from support.object_storage import Bucket, running_s3

    with running_s3() as endpoint:

        def empty() -> None:
            httpx.post(f"{endpoint}/moto-api/reset").raise_for_status()
            Bucket(endpoint, "crash").close()

        yield ObjectTarget(lambda: s3_store(endpoint, "crash"), empty)


# ----------------------------------------------------------------------------------------------------------- the soak


#: What the feed does to calls; each is planned again and again.
FAULTS = (
    {"kind": "error", "status": 503},
    {"kind": "reset", "effect": "after"},
    {"kind": "truncated_page"},
)

#: How a run may end otherwise: as the attempts of a task do.
_EXPECTED = (b"MalformedResponse", b"ConnectionLost", b"ServerFault", b"NotConnected")


def soak(name: str, target: ObjectTarget, events: int, sandbox: Any) -> int:
    """Load ``events``; 1 where any is missing or doubled."""
    _import_all()
    target.empty()
    kills, runs, started = 0, 0, time.monotonic()
    while True:
        sandbox.clear_faults()
        sandbox.plan_faults(*({"path": "/v1/events", **random.choice(FAULTS)} for _ in range(3)))
        runs += 1
        code, said = in_a_process(lambda write: _drain(target, sandbox.base_url, sandbox.event_api_key, write))
        if code == -signal.SIGKILL:
            kills += 1
        elif said == b"caught up":
            break
        elif not said.startswith(_EXPECTED):
            print(f"{name}: {said.decode()}")
            return 1
    ids = [row["event_id"] for row in stored_rows(target.open())]
    found = [len(ids), len(set(ids)), destination(target.open()).get_or_create_cursor()]
    problems = list(open_maintenance(target.open(), "acme").find_problems())
    good = found == [events] * 3 and not problems
    print(
        f"{name:<7} {events:,} events: {runs} runs, {kills} kills; rows, different ids and cursor {found}: "
        f"{'once each' if good else f'WRONG {problems}'}  ({time.monotonic() - started:.0f} s)",
        flush=True,
    )
    return 0 if good else 1


def _drain(target: ObjectTarget, base_url: str, key: str, write: int) -> None:
    from outbound_transfer.client import Client
    from outbound_transfer.client.settings import Settings
    from outbound_transfer.protocol import endpoints

    # The kernel ends the process at an instant that nothing in it knows of.
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.2, 8))
    settings = Settings(base_url=base_url, transfer_api_key="", event_api_key=key)
    feed = destination(target.open())
    with Client(settings, sleep=lambda _: None, on_retry=lambda _: None) as client, feed.session():
        cursor, has_more = feed.get_or_create_cursor(), True
        while has_more:
            page = client.perform(endpoints.read_events(cursor=cursor))
            feed.load_page(page)
            cursor, has_more = page.next_cursor, page.has_more
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.write(write, b"caught up")


# --------------------------------------------------------------------------------------------------------------- main


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 where anything was lost, doubled or half there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", choices=("local", "s3"), action="append")
    parser.add_argument("--soak", type=int, metavar="N")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="kills-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        with s3_target() as s3:
            places = {"local": local_target(folder), "s3": s3}
            chosen = {name: target for name, target in places.items() if name in (options.place or places)}
            return _soaks(chosen, options.soak) if options.soak else _table(chosen)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _soaks(places: dict[str, ObjectTarget], events: int) -> int:
    from outbound_transfer_sandbox.testing import running_sandbox

    with running_sandbox() as sandbox:
        sandbox.patch_account(feed_interval_seconds=0)
        for at in range(0, events, 100_000):
            sandbox.add_events(min(100_000, events - at))
        return max([soak(name, target, events, sandbox) for name, target in places.items()])


def _table(places: dict[str, ObjectTarget]) -> int:
    print(f"{'place':<6} {'work':<17} {'killed':<7} {'kills':>5} {'steps':>6} {'wrong':>6}  found (cursor: times)")
    wrong: list[str] = []
    for name, target in places.items():
        for work in (ingest, reset_and_ingest):
            for moment in MOMENTS:
                started = time.monotonic()
                account = kill_everywhere(target, moment, work=work)
                left = ", ".join(f"{cursor}: {times}" for cursor, times in sorted(account.left.items()))
                print(
                    f"{name:<6} {work.__name__:<17} {moment:<7} {account.kills:>5} {len(account.steps):>6} "
                    f"{len(account.wrong):>6}  {left}   ({time.monotonic() - started:.0f} s)",
                    flush=True,
                )
                wrong += [f"{name}, {moment}, {each}" for each in account.wrong]
    print("\n".join(wrong) or "Nothing was lost, doubled or left half done.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
