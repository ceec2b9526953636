"""Deliveries in hard cases: limits of size, names and rate, and answers that no service should give (design: 5)."""

from __future__ import annotations

import hashlib
import http.client
import itertools
import os
import threading
import time as real_time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import timezone
from airflow.sdk.exceptions import AirflowFailException

from outbound_transfer.client.retry import RetryPolicy
from outbound_transfer.operators.transfer import AttachFilesOperator, CreateTransferOperator, DeliverFilesOperator
from outbound_transfer.protocol.errors import RateLimited, ServerFault
from outbound_transfer.sources import Source
from outbound_transfer_sandbox.clock import Clock
from outbound_transfer_sandbox.testing import Sandbox
from support.tasks import Dead, MortalStore, SharedTime, TaskInstance, Time

DELIVERY = {"subject": "Report", "recipients": ["ann@example.com"]}

BOTH_MODES = pytest.mark.parametrize("deferrable", [False, True], ids=["held", "deferrable"])


@pytest.fixture
def time(sandbox: Sandbox) -> Time:
    return Time(sandbox)


@pytest.fixture
def deliver(connection: str, time: Time) -> Callable[..., TaskInstance]:
    """Make a delivery of files; its time is the sandbox's."""

    def make(*files: Any, retries: int = 0, **arguments: Any) -> TaskInstance:
        return task_instance(DeliverFilesOperator, time, retries=retries, files=list(files), **DELIVERY | arguments)

    return make


def task_instance(operator: type, time: Any, *, retries: int = 0, **arguments: Any) -> TaskInstance:
    return TaskInstance(lambda: operator(task_id="task", **arguments), time, retries)


@pytest.fixture
def stored(sandbox: Sandbox, hook: Any) -> Callable[[str], dict[str, str]]:
    """SHA-256 by name of what a transfer holds."""

    def of(transfer_id: str) -> dict[str, str]:
        files = hook.list_files(transfer_id)
        return {file.name: sandbox.stored_file(transfer_id, file.id)["sha256"] for file in files}

    return of


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def billed(sandbox: Sandbox) -> Counter[str]:
    return Counter(row["transfer_id"] for row in sandbox.ledger() if row["kind"] == "billed")


def counts(sandbox: Sandbox) -> Counter[tuple[str, str, int]]:
    """How often each call was answered how: by method, last word of the path (``""`` for an id), and status."""
    kinds = ("transfers", "files", "send")
    last = ((call, call["path"].rpartition("/")[2]) for call in sandbox.requests())
    return Counter((call["method"], word if word in kinds else "", call["status"]) for call, word in last)


def small_files(folder: Path, count: int) -> str:
    """A glob of ``count`` files of 100 bytes, no two alike."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number:04}.txt").write_text(f"{number:0100}")
    return str(folder / "*.txt")


# Sizes: at, below and over the account's limit (service.md, POST .../files, 413).

LIMIT = 1024 * 1024


@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
def test_a_file_up_to_the_limit_is_delivered(deliver, sandbox, stored, tmp_path, size) -> None:
    sandbox.patch_account(per_file_limit_mb=1)
    file = tmp_path / "report.bin"
    file.write_bytes(b"\xa5" * size)

    result = deliver(file).run()

    assert [record["size"] for record in result["files"] or []] in ([], [size])
    assert stored(result["id"]) == {"report.bin": digest(b"\xa5" * size)}


@pytest.fixture
def too_large(sandbox, tmp_path) -> str:
    """A glob of three files, of which the second is a byte over the limit."""
    sandbox.patch_account(per_file_limit_mb=1)
    for name, size in (("a.bin", LIMIT), ("b.bin", LIMIT + 1), ("c.bin", 1)):
        (tmp_path / name).write_bytes(bytes(size))
    return f"{tmp_path}/*.bin"


TOO_LARGE = r"file_too_large.*b\.bin.*2 MB.*1 MB.*split it or have the limit raised"


def test_a_byte_over_the_limit_uploads_nothing_and_says_what_to_do(deliver, sandbox, stored, too_large) -> None:
    ti = deliver(too_large, retries=3)

    for tries in (1, 2):
        with pytest.raises(AirflowFailException, match=TOO_LARGE):
            ti.run()
        assert ti.try_number == tries, "no retry would end otherwise"
        assert stored(ti.xcoms["transfer_id"]) == {}, "not the files that are small enough either"
        ti.clear()

    assert counts(sandbox)["POST", "files", 413] == 2, "in each try the first upload, and the only one"
    assert sandbox.ledger() == []
    sandbox.patch_account(per_file_limit_mb=2)
    assert set(stored(ti.run()["id"])) == {"a.bin", "b.bin", "c.bin"}
    assert counts(sandbox)["POST", "files", 201] == 3


def test_attaching_alone_uploads_nothing_over_the_limit(connection, sandbox, time, stored, too_large) -> None:
    transfer_id = task_instance(CreateTransferOperator, time, **DELIVERY).run()
    attach = task_instance(AttachFilesOperator, time, transfer_id=transfer_id, files=too_large)

    with pytest.raises(AirflowFailException, match=TOO_LARGE):
        attach.run()

    assert stored(transfer_id) == {}
    sandbox.patch_account(per_file_limit_mb=2)
    attach.clear()
    assert [file["name"] for file in attach.run()] == ["a.bin", "b.bin", "c.bin"], (
        "in the order in which they were named"
    )


# Names: exactly the source's, or refused before anything is created (design: promise 5.2).

KEPT = [
    "plain.txt",
    'double "quotes".txt',
    "single 'quotes'.txt",
    '"',
    "semi;colon; filename=evil.txt",
    "filename*=UTF-8''evil.txt",
    "50% %41 %0D%0A %.txt",
    "comma, equals = ampersand & plus +.txt",
    "question? hash# star* [a-z].txt",
    ".hidden",
    "..two-dots",
    "...leading",
    "trailing.",
    " spaces around ",
    "no-extension",
    "emoji 📦👩‍👩‍👧.txt",
    unicodedata.normalize("NFC", "Ångström é.txt"),
    unicodedata.normalize("NFD", "Ångström é.txt"),
    "報告書.pdf",
    "fullwidth／solidus＼.txt",
    "right\u202eto left\u200b\ufeff.txt",
    "line\u2028paragraph\u2029.txt",
    "=?utf-8?q?encoded?=",
    "a" * 251 + ".txt",
    "é" * 125 + "x.txt",
    "📦" * 63 + "xyz",
]

#: Names that are refused, with the word of the reason.
REFUSED = {
    "back\\slash.txt": "separator",
    "..\\..\\up.txt": "separator",
    "new\nline.txt": "control",
    "carriage\r\nX-Evil: 1": "control",
    "tab\t.txt": "control",
    "escape\x1b[31m": "control",
    "delete\x7f": "control",
    "next line\x85": "control",
    "lone surrogate \udcff.txt": "Unicode",
    "   ": "empty",
}

#: Names that no local file can have, but that a mapping can ask for.
REFUSED_IN_A_MAPPING = {
    "a/b.txt": "separator",
    "../up.txt": "separator",
    ".": "dots",
    "..": "dots",
    ". .": "dots",
    "nul\0.txt": "control",
    "high surrogate \ud800": "Unicode",
    "x" * 256: "255 bytes",
    "é" * 128: "255 bytes",
}


def as_one_word(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode()[:40]


def test_every_name_that_can_be_kept_is_kept_exactly(deliver, sandbox, stored, tmp_path) -> None:
    assert [name for name in KEPT if len(name.encode()) > 255] == []
    assert sum(len(name.encode()) == 255 for name in KEPT) == 3
    for name in KEPT:
        (tmp_path / name).write_bytes(name.encode())

    result = deliver(*(str(tmp_path / name) for name in KEPT)).run()

    assert stored(result["id"]) == {name: digest(name.encode()) for name in KEPT}


@pytest.mark.parametrize(("name", "reason"), REFUSED.items(), ids=map(as_one_word, REFUSED))
@pytest.mark.parametrize("way", ["path", "glob", "mapping"])
def test_a_name_that_cannot_be_kept_creates_nothing(deliver, sandbox, tmp_path, name, reason, way) -> None:
    (tmp_path / "a.txt").write_bytes(b"a")
    os.close(os.open(os.path.join(os.fsencode(tmp_path), os.fsencode(name)), os.O_CREAT))
    files = {
        "path": str(tmp_path / name),
        "glob": f"{tmp_path}/{'.*' if name.startswith('.') else '*'}",
        "mapping": {"path": str(tmp_path / "a.txt"), "name": name},
    }

    with pytest.raises(AirflowFailException, match=reason) as refusal:
        deliver(files[way]).run()

    assert sandbox.requests() == []
    assert str(refusal.value).isprintable(), "the log shows the name, and obeys nothing in it"


@pytest.mark.parametrize(("name", "reason"), REFUSED_IN_A_MAPPING.items(), ids=map(as_one_word, REFUSED_IN_A_MAPPING))
def test_a_new_name_that_cannot_be_kept_creates_nothing(deliver, sandbox, tmp_path, name, reason) -> None:
    (tmp_path / "a.txt").write_bytes(b"a")
    with pytest.raises(AirflowFailException, match=reason):
        deliver({"path": str(tmp_path / "a.txt"), "name": name}).run()
    assert sandbox.requests() == []


def test_names_that_differ_by_directory_alone_create_nothing(deliver, sandbox, tmp_path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "report.txt").write_text(folder)
    with pytest.raises(AirflowFailException, match=r"one/report\.txt.*two/report\.txt"):
        deliver(f"{tmp_path}/*/report.txt").run()
    assert sandbox.requests() == []


def test_names_that_differ_by_directory_alone_pass_once_renamed(deliver, stored, tmp_path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "report.txt").write_text(folder)
    second = {"path": str(tmp_path / "two/report.txt"), "name": "report (2).txt"}

    result = deliver(str(tmp_path / "one/report.txt"), second).run()

    assert stored(result["id"]) == {"report.txt": digest(b"one"), "report (2).txt": digest(b"two")}


# Answers with errors that the sandbox would not give, by a proxy in front of it.


#: The calls that the proxy can fail: how their paths end.
CALLS = {"create": "/transfers", "attach": "/files", "send": "/send"}


class Proxy:
    """Stands before the sandbox and answers some calls itself.

    :ivar tries: by call, when the tries came that it failed, and the next one: seconds of the injected clock and of
        the real one.
    """

    def __init__(self, sandbox: Sandbox, time: Time) -> None:
        self.sandbox, self.time = sandbox, time
        self.tries: dict[str, list[tuple[float, float]]] = {}
        self._status, self._headers, self._times = 0, dict[str, str](), 0

    def fail(self, *calls: str, status: int, headers: dict[str, str], times: int = 1_000) -> None:
        """Answer so to each of ``calls`` (of :data:`CALLS`) that often, and let it through from then on."""
        self.tries = {call: [] for call in calls}
        self._status, self._headers, self._times = status, headers, times

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str]] | None:
        """A status and headers, or None to let the call through."""
        call = next((call for call in self.tries if method == "POST" and path.endswith(CALLS[call])), None)
        if call is None or len(self.tries[call]) > self._times:
            return None
        self.tries[call].append((self.time.now, real_time.monotonic()))
        return None if len(self.tries[call]) > self._times else (self._status, self._dated())

    def gaps(self, call: str) -> list[tuple[float, float]]:
        """Between two tries: seconds waited, and seconds passed (the waited ones and those that the code took)."""
        return [
            (late - soon, late - soon + late_real - soon_real)
            for (soon, soon_real), (late, late_real) in itertools.pairwise(self.tries[call])
        ]

    def _dated(self) -> dict[str, str]:
        now = datetime.fromisoformat(self.sandbox.state()["clock"].replace("Z", "+00:00"))
        return {name: _http_date(now, value) for name, value in self._headers.items()}


def _http_date(now: datetime, value: str) -> str:
    # "@+30" is the date in 30 seconds.
    return format_datetime(now + timedelta(seconds=int(value[1:])), usegmt=True) if value[:1] == "@" else value


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer goes out whole, or the client waits for the second half
    proxy: Proxy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if answer := self.proxy.answer(self.command, self.path):
            self._reply(*answer, b'{"error": "made_up", "message": "made up"}')
            return
        upstream = http.client.HTTPConnection(self.proxy.sandbox.base_url.removeprefix("http://"), timeout=30)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers))
            with upstream.getresponse() as response:
                self._reply(response.status, dict(response.headers), response.read())
        finally:
            upstream.close()

    def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    do_GET = do_POST = do_DELETE = _handle  # noqa: N815  # the library's names


@pytest.fixture
def proxy(sandbox: Sandbox, time: Time, connection: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that Airflow's connection leads to."""
    proxy = Proxy(sandbox, time)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
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
    "whole": ({"Retry-After": "30"}, 30, 30.25),
    "one": ({"Retry-After": "1"}, 1, 1.25),
    "padded": ({"Retry-After": "007"}, 7, 7.25),
    "zero": ({"Retry-After": "0"}, 0.5, 0.75),
    "future date": ({"Date": "@+0", "Retry-After": "@+30"}, 30, 30.25),
    "future date by a clock that is wrong": ({"Date": "@-9999", "Retry-After": "@-9969"}, 30, 30.25),
    "past date": ({"Date": "@+0", "Retry-After": "@-3600"}, 0.5, 0.75),
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
    assert sum(counts(sandbox).values()) == 3, "each call reached the service once"
    for call in CALLS:
        assert len(proxy.gaps(call)) == 3
        for number, (waited, passed) in enumerate(proxy.gaps(call)):
            assert passed >= least - 0.001
            # A wait that is too short each time is doubled, up to a bound.
            assert waited <= (2**number if most is None else max(most, 0.5 * 2**number + 0.25))


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
    def retry_policy_of_calls(self) -> RetryPolicy:
        return RetryPolicy(patience=PATIENCE)


class ImpatientAttach(AttachFilesOperator):
    retry_policy_of_calls = Impatient.retry_policy_of_calls


def bounded(time: Time, most: float) -> None:
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

    assert len(proxy.tries["attach"]) == 6


@pytest.mark.parametrize("deferrable", [False, True], ids=["held", "deferrable"])
@pytest.mark.parametrize("call", CALLS)
def test_a_service_that_fails_without_end_is_given_up(proxy, time, tmp_path, monkeypatch, call, deferrable) -> None:
    # Each backoff at its longest, so that the test is the same each time.
    monkeypatch.setattr("tenacity.wait.random.uniform", lambda least, most: most)
    policy = RetryPolicy()
    proxy.fail(call, status=500, headers={})
    bounded(time, sum(min(2**number, policy.longest_backoff) for number in range(policy.attempts - 1)) + 1)
    files = small_files(tmp_path, 1)

    with pytest.raises(ServerFault):
        task_instance(DeliverFilesOperator, time, files=files, deferrable=deferrable, **DELIVERY).run()

    # Each create may leave a draft that nothing leads to.
    assert len(proxy.tries[call]) == (2 if call == "create" else policy.attempts)


# Many files: the real limit of 60 calls in 60 seconds, with the clock moved.

WINDOW, ALLOWED = 60, 60


def least_seconds(calls: int) -> int:
    """The least time in which the limit lets ``calls`` through: whole windows to wait for before the last."""
    return (calls - 1) // ALLOWED * WINDOW


def span(sandbox: Sandbox) -> float:
    """Seconds of the service's clock between the first call and the last."""
    first, *_, last = (datetime.fromisoformat(call["at"].replace("Z", "+00:00")) for call in sandbox.requests())
    return (last - first).total_seconds()


def report(what: str, sandbox: Sandbox, waited: float) -> None:
    refused = sum(call["status"] == 429 for call in sandbox.requests())
    done = len(sandbox.requests()) - refused
    print(
        f"{what}: {done} calls and {refused} times 429; {waited:.1f} s waited, {span(sandbox):.1f} s of the service's "
        f"clock; {least_seconds(done)} s at the least"
    )


def refused_for_rate(sandbox: Sandbox) -> int:
    return sum(call["status"] == 429 for call in sandbox.requests())


@pytest.fixture
def no_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real time stands still for the service and for deferrals, so that the machine's speed plays no part."""
    monkeypatch.setattr(Clock, "now", lambda clock: clock.offset)
    now = timezone.utcnow()
    monkeypatch.setattr(timezone, "utcnow", lambda: now)


def test_500_files_take_just_the_time_that_the_limit_allows(
    no_time_of_its_own, deliver, sandbox, time, tmp_path
) -> None:
    result = deliver(small_files(tmp_path / "in", 500), deferrable=True).run()

    report("500 files", sandbox, time.now)
    assert result["status"] == "pending"
    assert counts(sandbox) - Counter({("POST", "files", 429): 99}) == {
        ("POST", "transfers", 201): 1,
        ("POST", "files", 201): 500,
        ("POST", "send", 200): 1,
    }
    assert least_seconds(502) == 480
    assert span(sandbox) >= 480, "or the sandbox does not limit"
    assert span(sandbox) <= 480 * 1.02
    assert refused_for_rate(sandbox) == 8, "one for each window"
    assert len(billed(sandbox)) == 1


@pytest.mark.parametrize("death", ["an error", "a kill"])
def test_500_files_interrupted_are_uploaded_once(deliver, sandbox, time, stored, tmp_path, monkeypatch, death) -> None:
    ti = deliver(small_files(tmp_path / "in", 500), deferrable=True, retries=1)
    ti.store = store = MortalStore()
    alive, whole, deaths = ti.make, Source._chunks, []

    def make() -> Any:
        store.dead = False
        return alive()

    def chunks(self: Source, on_progress: Callable[[int], object]) -> Iterator[bytes]:
        for chunk in whole(self, on_progress):
            if self.name == "0249.txt" and not deaths:
                deaths.append(self.name)
                yield chunk[:50]
                store.dead = death == "a kill"
                raise Dead
            yield chunk

    ti.make = make
    monkeypatch.setattr(Source, "_chunks", chunks)

    result = ti.run()

    report(f"500 files interrupted by {death}", sandbox, time.now)
    assert deaths
    assert ti.try_number == 2
    done = counts(sandbox)
    assert done["POST", "files", 201] == 500
    assert done["POST", "files", 200] == 0
    assert done["POST", "files", 500] <= 1, "the one that was cut off"
    assert done["GET", "", 200] == 1, "one read tells what the draft holds"
    assert sum(done.values()) - refused_for_rate(sandbox) <= 502 + 2
    assert stored(result["id"]) == {f"{number:04}.txt": digest(f"{number:0100}".encode()) for number in range(500)}
    assert billed(sandbox) == {result["id"]: 1}


# Many deliveries at once on one key.

DELIVERIES, FILES = 20, 5


@BOTH_MODES
def test_twenty_deliveries_share_one_key(no_time_of_its_own, connection, sandbox, stored, tmp_path, deferrable) -> None:
    time = SharedTime(sandbox, DELIVERIES)
    files = [small_files(tmp_path / str(number), FILES) for number in range(DELIVERIES)]

    def deliver(number: int) -> tuple[str, float]:
        arguments = DELIVERY | {"files": files[number], "deferrable": deferrable}
        with time.thread():
            return task_instance(DeliverFilesOperator, time, **arguments).run()["id"], time.now

    with ThreadPoolExecutor(DELIVERIES) as pool:
        ends = dict(pool.map(deliver, range(DELIVERIES)))

    report("20 deliveries", sandbox, time.now)
    print(f"finished after {min(ends.values()):.1f} to {max(ends.values()):.1f} s")
    least = least_seconds(DELIVERIES * (FILES + 2))
    assert billed(sandbox) == dict.fromkeys(ends, 1)
    assert {len(stored(transfer_id)) for transfer_id in ends} == {FILES}
    assert counts(sandbox)["POST", "transfers", 201] == len(ends) == DELIVERIES
    assert span(sandbox) >= least, "or the sandbox does not limit"
    assert max(ends.values()) <= least * 1.05, "nobody waits for a window more than the limit asks"
    assert refused_for_rate(sandbox) <= DELIVERIES * (least // WINDOW + 1), "each asks hardly more than once a window"
