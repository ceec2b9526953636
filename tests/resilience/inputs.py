"""The same files as different kinds of input: by their paths, by their content, in one archive, as rows of queries."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.provider import ContentWriter

ARCHIVE = "all.zip"

#: What follows a file's name in that of a query's result.
ROWS = ".rows.csv"

SQL_CONN_ID = "contents"

#: Bytes of a file that are one row: of the larger ones, more than a driver is asked for at once.
_ROW_BYTES = 100


def as_paths(paths: Sequence[Path]) -> dict[str, Any]:
    return {"files": [str(path) for path in paths]}


def as_contents(paths: Sequence[Path]) -> dict[str, Any]:
    """Each in another form, which reads the file when a try needs its content."""
    forms: list[Callable[[Path], Any]] = [
        lambda path: path.read_bytes,
        lambda path: ContentWriter(partial(_copy, path)),
    ]
    return {
        "files": [{"name": path.name, "content": forms[number % len(forms)](path)} for number, path in enumerate(paths)]
    }


def as_archive(paths: Sequence[Path]) -> dict[str, Any]:
    """Paths and contents alternately, in one ZIP file."""
    files = [as_contents([path])["files"][0] if number % 2 else str(path) for number, path in enumerate(paths)]
    return {"files": files, "archive": ARCHIVE}


def as_query(paths: Sequence[Path]) -> dict[str, Any]:
    """The rows of a table, which has the bytes of the files as they are now; none of a file that is missing."""
    rows = [(path.name, *row) for path in paths if path.exists() for row in _rows_of(path.read_bytes())]
    with closing(sqlite3.connect(_database(paths))) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS parts (file TEXT, number INTEGER, part TEXT)")
        database.execute("DELETE FROM parts")
        database.executemany("INSERT INTO parts VALUES (?, ?, ?)", rows)
    sql = "SELECT part FROM parts WHERE file = ? ORDER BY number"
    return {
        "sql_conn_id": SQL_CONN_ID,
        "queries": [{"sql": sql, "parameters": [path.name], "file_name": f"{path.name}{ROWS}"} for path in paths],
    }


def sql_connection(paths: Sequence[Path]) -> dict[str, str]:
    connection = {"conn_type": "sqlite", "host": str(_database(paths))}
    return {f"AIRFLOW_CONN_{SQL_CONN_ID.upper()}": json.dumps(connection)}


#: How a delivery may be given its files, by name.
INPUTS: dict[str, Callable[[Sequence[Path]], dict[str, Any]]] = {
    "paths": as_paths,
    "contents": as_contents,
    "archive": as_archive,
    "query": as_query,
}


def operator_for(given: str) -> type[DeliverFilesOperator]:
    return SqlToOutboundTransferOperator if given == "query" else DeliverFilesOperator


def stored_digests(sandbox: Sandbox, transfer_id: str, files: Sequence[dict[str, Any]]) -> dict[str, str]:
    """SHA-256 by name of the files of a transfer, of those in its archive, or of those that its rows are of."""
    digests = {}
    for file in files:
        if not file["name"].endswith((ARCHIVE, ROWS)):
            digests[file["name"]] = sandbox.stored_file(transfer_id, file["id"])["sha256"]
            continue
        for name, content in _unpacked(file["name"], sandbox.stored_content(transfer_id, file["id"])):
            digests[name] = hashlib.sha256(content).hexdigest()
    return digests


def _unpacked(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    if name == ARCHIVE:
        with ZipFile(io.BytesIO(content)) as archive:
            yield from ((name, archive.read(name)) for name in archive.namelist())
    else:
        _, *rows = csv.reader(content.decode().splitlines())
        yield name.removesuffix(ROWS), b"".join(bytes.fromhex(part) for (part,) in rows)


def _database(paths: Sequence[Path]) -> Path:
    return paths[0].parent / "contents.db"


def _rows_of(content: bytes) -> Iterator[tuple[int, str]]:
    for start in range(0, max(len(content), 1), _ROW_BYTES):
        yield start, content[start : start + _ROW_BYTES].hex()


def _copy(path: Path, file: BinaryIO) -> None:
    with path.open("rb") as opened:
        shutil.copyfileobj(opened, file)
