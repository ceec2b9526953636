"""A folder of objects that an ingest is killed at: steps are the calls of its file system."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbound_transfer.lake import object_store
from outbound_transfer.lake.object_maintenance import ObjectFeedMaintenance
from outbound_transfer.lake.object_store import ObjectStore
from outbound_transfer.lake.objects import ObjectEventDestination
from support.object_folders import OpenStore, destination, local_store, s3_store, stored_rows

if TYPE_CHECKING:
    from resilience.crash_ingest.ingest import Killer

#: Calls of a file system that are steps; the others of `os` are those of local files.
_FILE_SYSTEM = ("cat_file", "pipe_file", "rm_file", "ls")
_OS = ("link", "fsync")


@dataclass(frozen=True)
class ObjectTarget:
    """A folder of objects: how to open it in a process, and how to make it empty."""

    open_store: OpenStore
    empty: Callable[[], None]

    @property
    def states(self) -> list[dict[str, Any]]:
        from resilience.crash_ingest.ingest import states_without_keys

        return [{**state, "problems": 0} for state in states_without_keys()]

    def prepare(self) -> None:
        from resilience.crash_ingest.ingest import ingest

        importlib.import_module("s3fs")
        with tempfile.TemporaryDirectory() as folder:
            ingest(local_target(Path(folder)))
            local_target(Path(folder)).found()

    def open(self, killer: Killer | None = None) -> ObjectEventDestination:
        store = self.open_store()
        return destination(_watched(store, killer) if killer else store)

    def maintenance(self, killer: Killer | None = None) -> ObjectFeedMaintenance:
        return ObjectFeedMaintenance(self.open(killer))

    def found(self) -> dict[str, Any]:
        """Return what the pages hold, as the next run finds them, and as ``verify`` does."""
        store, maintenance = self.open_store(), self.maintenance()
        is_known = store.list_names("account=acme") or store.list_names("_feed")
        cursor = maintenance.read_cursor() if is_known else 0
        problems = list(maintenance.find_problems()) if is_known else []
        rows = stored_rows(store)
        return {
            "cursor": cursor,
            "ids": sorted(int(row["event_id"]) for row in rows if row["event_id"] is not None),
            "rejected": sum(row["rejected_line"] is not None for row in rows),
            "problems": len(problems),
        }

    def count(self) -> list[int]:
        ids = [row["event_id"] for row in stored_rows(self.open_store())]
        problems = list(self.maintenance().find_problems())
        assert not problems, problems
        return [len(ids), len(set(ids)), self.maintenance().read_cursor()]


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
    kinds = ("_probe", "_feed", "_tmp", "page-", "account=")
    kind = next((kind for kind in kinds if args and kind in str(args[0])), "folder")
    return f"{kind}{' create' if options.get('mode') == 'create' else ''}"


def _watched(store: ObjectStore, killer: Killer) -> ObjectStore:
    """Let a killer see the calls of a store; for a process that ends with it."""
    object_store.os = _Watched(os, _OS, killer)  # type: ignore[attr-defined]
    store.fs = _Watched(store.fs, _FILE_SYSTEM, killer)
    return store


def local_target(folder: Path) -> ObjectTarget:
    """Local files."""
    return ObjectTarget(lambda: local_store(folder), lambda: shutil.rmtree(folder, ignore_errors=True))


def s3_target(endpoint: str) -> ObjectTarget:
    """A bucket of an S3 server of its own, which is reset when the bucket is emptied."""
    import httpx

    from support.object_storage import Bucket

    def empty() -> None:
        httpx.post(f"{endpoint}/moto-api/reset").raise_for_status()
        Bucket(endpoint, "crash").close()

    return ObjectTarget(lambda: s3_store(endpoint, "crash"), empty)
