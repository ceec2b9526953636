"""Attach 20 files of 50 MB, one and several at once: over a simulated line, and over loopback; speeds, and memory.

The line is a TCP proxy in a process of its own: 50 ms there and back, 20 MB/s a stream, 100 MB/s in all. It shapes what
the client sends, in real time; responses are only late.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from benchmarks.bench_upload import peak_mib, uploading_sandbox
from outbound_transfer_sandbox.testing import Sandbox

MB = 1_000_000
FILES = 20
ROUND_TRIP, STREAM, LINE = 0.05, 20 * MB, 100 * MB
#: Bytes that the line carries at a time.
PIECE = 64 * 1024
#: Seconds that a sender may fall behind its rate and catch up: timers are late.
CREDIT = 0.02
#: The default, and as many as fill the line.
PARALLEL = (1, 4, LINE // STREAM)
#: Over loopback, where a run is short.
ROUNDS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=50, help="megabytes of each file")
    parser.add_argument("--line", nargs=2, metavar=("UPSTREAM", "READY"), help=argparse.SUPPRESS)
    parser.add_argument("--attach", nargs=3, metavar=("CONNECTION", "FOLDER", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.line:
        asyncio.run(Line(arguments.line[0]).serve(Path(arguments.line[1])))
    elif arguments.attach:
        print(json.dumps(attach(*arguments.attach)))
    else:
        with tempfile.TemporaryDirectory(prefix="bench-uploads-") as folder:
            compare(Path(folder), arguments.mb)
    return 0


def compare(folder: Path, size_mb: int) -> None:
    """Run each number of uploads over the line and over loopback, and print the figures."""
    (folder / "files").mkdir()
    (folder / "warm.bin").write_bytes(b"warm")
    for number in range(FILES):
        with (folder / "files" / f"{number:02}.bin").open("wb") as file:
            file.truncate(size_mb * MB)
    with uploading_sandbox() as sandbox:
        line = subprocess.Popen([sys.executable, __file__, "--line", sandbox.base_url, str(folder / "line")])
        try:
            while not (folder / "line").exists():
                time.sleep(0.05)
            shaped = (folder / "line").read_text()
            report(f"line of {LINE // MB} MB/s", size_mb, [measure(folder, sandbox, shaped, PARALLEL)])
            rounds = [measure(folder, sandbox, sandbox.base_url, PARALLEL[:2]) for _ in range(ROUNDS)]
            report(f"loopback, best of {ROUNDS}", size_mb, rounds)
        finally:
            line.terminate()
            line.wait()


def measure(folder: Path, sandbox: Sandbox, url: str, numbers: tuple[int, ...]) -> dict[int, dict[str, float]]:
    """Return seconds and MiB for each number of uploads at once, in the same round."""
    return {number: run(folder, sandbox, url, number) for number in numbers}


def run(folder: Path, sandbox: Sandbox, url: str, number: int) -> dict[str, float]:
    connection = {"conn_type": "outbound_transfer", "host": url, "password": sandbox.transfer_api_key}
    command = [sys.executable, __file__, "--attach", json.dumps(connection), str(folder), str(number)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def attach(connection: str, folder: str, number: str) -> dict[str, float]:
    """Attach the files as a task does, in a process of its own: seconds, and MiB that its peak memory grew by."""
    from support import airflow_home  # noqa: F401  # before anything imports Airflow
    from support.quiet import be_quiet

    be_quiet()
    os.environ["AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"] = connection
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator
    from support.tasks import FakeTaskInstance

    clock: Any = SimpleNamespace(sleep=time.sleep, clock=time.monotonic)
    draft: dict[str, Any] = {"subject": "Files", "recipients": ["ann@example.com"]}
    transfer_id = FakeTaskInstance(lambda: CreateTransferOperator(task_id="create", **draft), clock).run()

    def task(pattern: str) -> FakeTaskInstance:
        arguments: dict[str, Any] = {"files": f"{folder}/{pattern}", "max_parallel_uploads": number}
        return FakeTaskInstance(
            lambda: AttachFilesOperator(task_id="attach", transfer_id=transfer_id, **arguments), clock
        )

    task("warm.bin").run()  # connect, import and warm up outside of the measured part
    before, started = peak_mib(), time.perf_counter()
    records = task("files/*.bin").run()
    seconds = time.perf_counter() - started
    OutboundTransferHook().discard_transfer(transfer_id)
    assert sum(record["size"] for record in records) == sum(
        file.stat().st_size for file in Path(folder, "files").iterdir()
    )
    return {"seconds": seconds, "grown_mib": peak_mib() - before}


def report(what: str, size_mb: int, rounds: list[dict[int, dict[str, float]]]) -> None:
    best = {number: min(each[number]["seconds"] for each in rounds) for number in rounds[0]}
    for number, seconds in best.items():
        memory = max(each[number]["grown_mib"] for each in rounds)
        print(
            f"{what}: {number} at once: {seconds:.1f} s, {FILES * size_mb / seconds:.0f} MB/s, "
            f"{best[1] / seconds:.2f} times one at a time; memory +{memory:.1f} MiB",
            flush=True,
        )


class Line:
    """A proxy to ``upstream`` that carries what clients send at the rates of the line, half a round trip late."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._free_at = 0.0

    async def serve(self, ready: Path) -> None:
        """Serve on a free port, whose address is written to ``ready``."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0, limit=PIECE)
        address = "http://{}:{}".format(*server.sockets[0].getsockname())
        ready.with_suffix(".part").write_text(address)
        ready.with_suffix(".part").replace(ready)
        await server.serve_forever()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(ROUND_TRIP)
        upstream = await asyncio.open_connection(self._upstream.hostname, self._upstream.port, limit=PIECE)
        await asyncio.gather(
            self._carry(reader, upstream[1], STREAM), self._carry(upstream[0], writer, 0), return_exceptions=True
        )

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: int) -> None:
        """Carry one direction.

        :param rate: bytes a second; 0 for no limit.
        """
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.create_task(self._deliver(under_way, writer))
        free_at = 0.0
        while piece := await reader.read(PIECE):
            now = time.monotonic()
            if rate:
                free_at = max(free_at, now - CREDIT) + len(piece) / rate
                self._free_at = max(self._free_at, now - CREDIT) + len(piece) / LINE
            sent_at = max(free_at, self._free_at if rate else now)
            under_way.put_nowait((sent_at + ROUND_TRIP / 2, piece))
            await asyncio.sleep(max(sent_at - now, 0))
        under_way.put_nowait((0.0, b""))
        await delivering

    @staticmethod
    async def _deliver(under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            arrives_at, piece = await under_way.get()
            if not piece:
                break
            await asyncio.sleep(max(arrives_at - time.monotonic(), 0))
            writer.write(piece)
            await writer.drain()
        writer.close()


if __name__ == "__main__":
    sys.exit(main())
