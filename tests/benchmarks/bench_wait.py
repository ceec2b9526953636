"""What waiting costs: many transfers, each with a deferred sensor of a real Airflow, beside the HTTP provider's sensor.

The service has its real limit of 60 calls a minute. Recipients pick up, transfers are canceled and expire, spread over
the run. Then the same number of transfers is waited for by the HTTP provider's deferrable `HttpSensor`, which can only
tell 404 from success: a gateway answers it 404 while a transfer is outstanding.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.simulated_waiters import simulated
from benchmarks.waiters import Result, Waiting, WaitStack, ending, memory_of, ours, prepare
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_stack.console import Reporter
from support.airflow_stack.many_sandboxes import running_stack
from support.airflow_stack.processes import Signals


@contextmanager
def gateway(sandbox: list[Sandbox]) -> Iterator[str]:
    """Answers 404 while a transfer is outstanding, else as the service does."""

    async def transfer(request: Request) -> Response:
        path = f"{sandbox[0].base_url}/v1/transfers/{request.path_params['id']}"
        answer = await http.get(path, headers={"Authorization": f"Bearer {sandbox[0].transfer_api_key}"})
        is_outstanding = answer.is_success and answer.json()["status"] in ("pending", "partial")
        return Response(answer.content, 404 if is_outstanding else answer.status_code)

    http = httpx.AsyncClient(trust_env=False, timeout=60)
    app = Starlette(routes=[Route("/{id}", transfer)])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def lines_of(result: Result) -> Iterator[str]:
    kinds = Counter("lists" if call["path"] == "/v1/transfers" else "reads" for call in result.made)
    minutes = Counter(call["timestamp"][:16] for call in result.made)
    states, running, delays = result.waits.states, result.waits.running, result.delays
    yield f"succeeded          {states['success']:>8}"
    yield f"failed             {states['failed']:>8}"
    if left := result.count - states["success"] - states["failed"]:
        yield f"still waiting      {left:>8}"
    yield f"requests           {len(result.made):>8}   {kinds['lists']} lists, {kinds['reads']} reads"
    yield f"in a minute        {len(result.made) / result.seconds * 60:>8.1f}"
    yield f"                   {max(minutes.values(), default=0):>8}   in the busiest"
    yield f"refused (429)      {sum(call['status'] == 429 for call in result.made):>8}"
    if delays:
        yield f"from end to success{statistics.median(delays):>8.1f} s at the median"
        late = delays[min(len(delays) * 99 // 100, len(delays) - 1)]
        yield f"                   {late:>8.1f} s at the 99th percentile"
        yield f"                   {delays[-1]:>8.1f} s at most"
    yield f"worker slots held  {max(running):>8}   {statistics.mean(running):.2f} on average"
    if result.memory:
        yield f"triggerer memory   {result.memory / result.count / 1024:>8.1f} KiB per wait"


def peer(stack: WaitStack, sent: list[str], seconds: float, tell: Callable[[str], None]) -> Result:
    """Wait for all with `HttpSensor`."""
    sandbox, count = stack.sandboxes[0], len(sent)
    before_calls, began = len(sandbox.requests()), time.time()
    waits = Waiting(stack, "peer")
    waits.start()
    with ending(sandbox, sent, seconds, waits.ended):
        waits.until(lambda states: states["success"] + states["failed"] == count, seconds, tell)
    made = sandbox.requests()[before_calls:]
    return Result(waits, count, time.time() - began, made, [])


def stalls_of(stack: WaitStack, run_id: str) -> str:
    """Stop the meter; the line to print."""
    (stack.folder / "stop").touch()
    for _ in range(60):
        if next(run for run in stack.airflow.runs("meter") if run["dag_run_id"] == run_id)["state"] == "success":
            stalls = stack.airflow.xcom("meter", run_id, "measure")
            return f"event-loop stalls  {len(stalls):>8}   of over 50 ms, the longest {max(stalls, default=0)} ms"
        time.sleep(1)
    return "event-loop stalls: the meter did not end"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated", type=int, default=5_000, help="waiting triggers in one process")
    parser.add_argument("--waits", type=int, default=1_000)
    parser.add_argument("--idle", type=int, default=1_000, help="triggers that do nothing, whose memory is compared")
    parser.add_argument("--interval", type=float, default=60.0, help="seconds between two looks")
    parser.add_argument("--seconds", type=float, default=600.0, help="over which the transfers end")
    parser.add_argument(
        "--peer-seconds", type=float, default=300.0, help="after which HttpSensor is given up; 0: left out"
    )
    arguments = parser.parse_args()
    WaitStack.interval = arguments.interval
    reporter, found, lines = Reporter(), [], [*simulated(arguments.simulated), ""]
    with (
        tempfile.TemporaryDirectory(prefix="bench-wait-") as folder,
        gateway(found) as WaitStack.gateway,
        running_stack(Path(folder), reporter, 1, Signals(), kind=WaitStack) as stack,
    ):
        found += stack.sandboxes
        stack.wait_for_dags(stack.airflow, "waits", "peer", "idle", "meter")
        idle, first = memory_of(stack, "idle", arguments.idle), memory_of(stack, "waits", 1)
        reporter.say(f"The first wait takes {first / 2**20:.0f} MiB, an idle trigger {idle / 1024:.1f} KiB")
        sent = prepare(stack, arguments.waits)
        reporter.say(f"Sent {arguments.waits} transfers")
        meter = stack.airflow.trigger("meter", {})
        lines.append(f"TransferSensor: {arguments.waits} waits, a look every {arguments.interval:.0f} s,")
        lines.append(f"ends spread over {arguments.seconds:.0f} s, 60 calls a minute allowed")
        lines += lines_of(ours(stack, sent, arguments.seconds, reporter.say, lambda: None))
        lines.append(f"an idle trigger    {idle / 1024:>8.1f} KiB, which is Airflow's own")
        lines.append(stalls_of(stack, meter))
        if arguments.peer_seconds:
            lines += ["", f"HttpSensor: the same, given up after {arguments.peer_seconds:.0f} s"]
            sent = prepare(stack, arguments.waits)
            lines += lines_of(peer(stack, sent, arguments.peer_seconds, reporter.say))
    print("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
