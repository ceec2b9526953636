"""Folders of objects, on a disk and on an S3 server, and what is in them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from outbound_transfer.client.events import Page
from outbound_transfer.lake.object_maintenance import ObjectFeedMaintenance
from outbound_transfer.lake.object_store import LocalStore, ObjectStore
from outbound_transfer.lake.objects import ObjectEventDestination, account_folder
from support.feed_pages import events, page
from support.object_storage import ACCESS_KEY, SECRET_KEY

#: Opens a folder; in each process anew.
OpenStore = Callable[[], ObjectStore]


def local_store(folder: Path) -> ObjectStore:
    from fsspec.implementations.local import LocalFileSystem

    return LocalStore(LocalFileSystem(skip_instance_cache=True), str(folder))


def s3_store(endpoint: str, bucket: str) -> ObjectStore:
    from s3fs import S3FileSystem

    fs = S3FileSystem(
        key=ACCESS_KEY,
        secret=SECRET_KEY,
        client_kwargs={"endpoint_url": endpoint, "region_name": "us-east-1"},
        skip_instance_cache=True,
    )
    return ObjectStore(fs, f"{bucket}/outbound_transfer/events")


def destination(store: ObjectStore, account: str = "acme") -> ObjectEventDestination:
    return ObjectEventDestination(store, account)


def maintenance(store: ObjectStore, account: str = "acme") -> ObjectFeedMaintenance:
    return ObjectFeedMaintenance(destination(store, account))


def cut(cursor: int, size: int, last: int) -> Page:
    """The page of the feed after a cursor, of at most some events; the feed has them up to ``last``."""
    finish = min(cursor + size, last)
    return page(cursor, *events(cursor, finish), next_cursor=finish, has_more=finish < last)


def page_names(store: ObjectStore, account: str = "acme") -> list[str]:
    return store.list_names(account_folder(account))


def stored_rows(store: ObjectStore, account: str = "acme") -> list[dict[str, Any]]:
    """All rows in an account's folder, as a loader finds them: by listing."""
    rows: list[dict[str, Any]] = []
    for name in page_names(store, account):
        content = store.read(f"{account_folder(account)}/{name}")
        assert content is not None
        rows += pq.read_table(io.BytesIO(content)).to_pylist()
    return rows


def stored_ids(store: ObjectStore, account: str = "acme") -> list[str]:
    """The ids of all events in an account's folder, sorted by their number."""
    ids = [row["event_id"] for row in stored_rows(store, account) if row["event_id"] is not None]
    return sorted(ids, key=lambda each: int(each.removeprefix("e")))
