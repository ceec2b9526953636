"""Answers with errors that the sandbox would not give, by a proxy in front of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from outbound_transfer.client.retry import RETRY_AFTER_JITTER, WAITED_JITTER, RetryPolicy
from outbound_transfer.operators.transfer import AttachFilesOperator, CreateTransferOperator, DeliverFilesOperator
from outbound_transfer.protocol.errors import RateLimited, ServerFault
from outbound_transfer_sandbox.testing import Sandbox
from support.deliveries import BOTH_MODES, DELIVERY, counts, small_files, task_instance
from support.proxy import CALLS, Proxy, ProxyHandler
from support.tasks import SimulatedClock


@pytest.fixture
def proxy(sandbox: Sandbox, time: SimulatedClock, connection: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that Airflow's connection leads to."""
    proxy = Proxy(sandbox, time)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (ProxyHandler,), {"proxy": proxy}))
    value = os.environ["AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"]
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", value.replace(sandbox.base_url, address))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield proxy
    server.shutdown()
    thread.join()
    server.server_close()


#: Headers of a 429, and how long the client then waits, at least and at most; None for a backoff, which grows.
RETRY_AFTER: dict[str, tuple[dict[str, str], float, float | None]] = {
    "whole": ({"Retry-After": "30"}, 30, 31),
    "one": ({"Retry-After": "1"}, 1, 2),
    "padded": ({"Retry-After": "007"}, 7, 8),
    "zero": ({"Retry-After": "0"}, 0.5, 1.5),
    "future date": ({"Date": "@+0", "Retry-After": "@+30"}, 30, 31),
    "future date by a clock that is wrong": ({"Date": "@-9999", "Retry-After": "@-9969"}, 30, 31),
    "past date": ({"Date": "@+0", "Retry-After": "@-3600"}, 0.5, 1.5),
    "date without Date": ({"Retry-After": "@+30"}, 0.5, None),
    "negative": ({"Retry-After": "-30"}, 0.5, None),
    "absent": ({}, 0.5, None),
    "empty": ({"Retry-After": ""}, 0.5, None),
    "garbage": ({"Retry-After": "soon, I hope"}, 0.5, None),
    "not a number": ({"Retry-After": "nan"}, 0.5, None),
    "infinite": ({"Retry-After": "inf"}, 0.5, None),
    "fullwidth": ({"Retry-After": "\xb2\xb2"}, 0.5, None),
    "impossible date": ({"Date": "@+0", "Retry-After": "Fri, 31 Feb 2026 25:61:61 GMT"}, 0.5, None),
}


@BOTH_MODES
@pytest.mark.parametrize("case", RETRY_AFTER)
def test_the_wait_is_what_retry_after_says(proxy, deliver, sandbox, tmp_path, case, deferrable) -> None:
    headers, least, most = RETRY_AFTER[case]
    proxy.fail(*CALLS, status=429, headers=headers, times=3)

    result = deliver(small_files(tmp_path, 1), deferrable=deferrable).run()

    assert result["status"] == "pending"
    calls = counts(sandbox)
    del calls["GET", "", 200]  # a resumed delivery reads its draft
    assert sum(calls.values()) == 3, "each call reached the service once"
    for call in CALLS:
        assert len(proxy.gaps(call)) == 3
        so_far = 0.0
        for number, (waited, passed) in enumerate(proxy.gaps(call)):
            assert passed >= least - 0.001
            # A wait that is too short each time is doubled, up to a bound. Repeated refusals spread.
            spread = so_far * WAITED_JITTER
            assert waited <= (2**number if most is None else max(most, 0.5 * 2**number + RETRY_AFTER_JITTER) + spread)
            so_far += waited


@BOTH_MODES
@pytest.mark.parametrize("value", ["1000000000", "9" * 400, "3600", "@+4000"])
@pytest.mark.parametrize("call", ["create", "attach"])
def test_a_wait_beyond_the_patience_is_not_begun(proxy, deliver, sandbox, tmp_path, call, value, deferrable) -> None:
    proxy.fail(call, status=429, headers={"Date": "@+0", "Retry-After": value})

    with pytest.raises(RateLimited):
        deliver(small_files(tmp_path, 1), deferrable=deferrable).run()

    assert len(proxy.tries[call]) == 1
    assert proxy.time.waits == []
    assert sandbox.ledger() == []


PATIENCE = 60


class Impatient(DeliverFilesOperator):
    def call_retry_policy(self) -> RetryPolicy:
        return RetryPolicy(timeout=PATIENCE)


class ImpatientAttach(AttachFilesOperator):
    call_retry_policy = Impatient.call_retry_policy


def bounded(time: SimulatedClock, most: float) -> None:
    """Fail the test at a wait that would end after ``most`` seconds in all, before it goes on for ever."""
    sleep = time.sleep

    def sleep_or_fail(seconds: float) -> None:
        assert time.now + seconds <= most, f"{time.now + seconds:.0f} s in waits, where {most:.0f} s are the most"
        sleep(seconds)

    time.sleep = sleep_or_fail  # type: ignore[method-assign]


@BOTH_MODES
@pytest.mark.parametrize("value", ["0", "10", "@-60", "garbage", None])
@pytest.mark.parametrize("call", ["create", "attach"])
def test_a_429_without_end_is_given_up_in_time(proxy, time, tmp_path, call, value, deferrable) -> None:
    proxy.fail(call, status=429, headers={"Date": "@+0"} | ({} if value is None else {"Retry-After": value}))
    bounded(time, PATIENCE)
    files = small_files(tmp_path, 1)

    with pytest.raises(RateLimited):
        task_instance(Impatient, time, files=files, deferrable=deferrable, **DELIVERY).run()

    assert min(passed for _, passed in proxy.gaps(call)) >= 0.499, "no hot loop"
    assert 3 <= len(proxy.tries[call]) <= PATIENCE / 0.5 + 1


@pytest.mark.parametrize("deferrable", [False, True], ids=["held", "deferrable"])
def test_attaching_alone_gives_a_429_without_end_up_in_time(proxy, time, tmp_path, deferrable) -> None:
    arguments = {"files": small_files(tmp_path, 1), "deferrable": deferrable}
    transfer_id = task_instance(CreateTransferOperator, time, **DELIVERY).run()
    proxy.fail("attach", status=429, headers={"Retry-After": "10"})
    bounded(time, PATIENCE)

    with pytest.raises(RateLimited):
        task_instance(ImpatientAttach, time, transfer_id=transfer_id, **arguments).run()

    assert 5 <= len(proxy.tries["attach"]) <= 6


@pytest.mark.parametrize("deferrable", [False, True], ids=["held", "deferrable"])
@pytest.mark.parametrize("call", CALLS)
def test_a_service_that_fails_without_end_is_given_up(proxy, time, tmp_path, monkeypatch, call, deferrable) -> None:
    # Each backoff at its longest, so that the test is the same each time.
    monkeypatch.setattr("tenacity.wait.random.uniform", lambda least, most: most)
    policy = RetryPolicy()
    proxy.fail(call, status=500, headers={})
    bounded(time, sum(min(2**number, policy.max_backoff) for number in range(policy.max_attempts - 1)) + 1)
    files = small_files(tmp_path, 1)

    with pytest.raises(ServerFault):
        task_instance(DeliverFilesOperator, time, files=files, deferrable=deferrable, **DELIVERY).run()

    # Each create may leave a draft that nothing leads to.
    assert len(proxy.tries[call]) == (2 if call == "create" else policy.max_attempts)
