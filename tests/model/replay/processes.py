"""Processes of the real operators that stop before each of their calls and writes, until they are told to go on.

Each runs in a greenlet: one goes on where the other stops, and never two at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Final
from unittest import mock

from greenlet import getcurrent, greenlet

from model.replay.service import Service
from outbound_transfer.client import Request, transport
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.memory import Memory
from outbound_transfer.delivery.memory_store import RowMemoryStore, TaskMemoryStore
from outbound_transfer.delivery.task_facts import TaskFacts
from outbound_transfer.warehouse.memory_table import MemoryRow
from support.tasks import ProcessCrashed

CONNECTION: Final = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"


class Gate(Enum):
    """Where a process stops: right before something that another process, or the service, can see."""

    BEGIN = "begins, and excludes earlier tries"
    CLAIM = "claims a delivery key"
    WRITE = "stores its memory"
    REWRITE = "stores what is no news"
    ASK = "asks Airflow whether it is wanted"
    READ = "reads the transfer"
    READ_AGAIN = "reads the draft after a wait"
    READ_FIRST = "reads the first transfer"
    LIST = "lists the sent transfers"
    CREATE = "creates a draft"
    UPLOAD = "uploads a file"
    REMOVE = "removes a file"
    DISCARD = "discards the draft"
    SEND = "sends"


#: What changes nothing: the model has it in the step that follows.
PASSING: Final = (Gate.REWRITE, Gate.READ_AGAIN)

_GATES: Final = {
    "create": Gate.CREATE,
    "attach": Gate.UPLOAD,
    "remove": Gate.REMOVE,
    "discard": Gate.DISCARD,
    "send": Gate.SEND,
    "list": Gate.LIST,
    "get": Gate.READ,
}


def _passing_before(gate: Gate | None, *, may_ask: bool) -> tuple[Gate, ...]:
    """Return what the model has in the step that begins with ``gate``; None if it is the end."""
    if gate is None:
        return (Gate.READ,)  # of a draft that is to be removed, and is not there
    if gate is Gate.CLAIM:
        return (Gate.WRITE,)  # the task's own memory
    # The real task asks in more cases whether others have sent it: once somebody has picked up, as the recipients are
    # other input; and under a key, if the memory of an earlier try of the task itself is lost.
    return (Gate.LIST,) if may_ask and gate is not Gate.LIST else ()


class Fate(Enum):
    """What becomes of a process, or of its call."""

    GO = "it goes on"
    DIE = "it dies before that"
    DIE_AFTER = "it dies once the call is applied"
    DIE_IN_CALL = "it dies, and its call is under way"
    LOSE = "its call is under way, and the connection is lost"
    FAULT = "the service refuses the call"
    FULL = "the account is full"


@dataclass
class LateCall:
    """A call that is under way."""

    settings: Any
    request: Request


class Process:
    """One process of a try.

    :param kind: of its task: deliver, create, attach or send.
    :param run: what it does.
    :param connection: where it leads.
    :param first_id: of the transfer that it delivers again; "" if it does not.
    :ivar gate: where it has stopped; None if it has ended.
    :ivar created: the ids of the drafts that it has created.
    :ivar late: its calls that are under way.
    """

    def __init__(
        self, kind: str, run: Callable[[], Any], connection: str, service: Service, *, first_id: str = ""
    ) -> None:
        self.kind, self._run, self._connection, self._service, self._first_id = kind, run, connection, service, first_id
        self._greenlet = greenlet(self._work)
        self.gate: Gate | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.created: list[str] = []
        self.late: list[LateCall] = []
        self.passed: list[Gate] = []
        self._fault: dict[str, Any] = {}
        self._is_keyed = self.has_lost_response = False
        self._is_dead = self._has_waited = self._is_sending = self._is_verifying = False
        self._ends = ""
        self._stored: dict[int, tuple[Any, ...]] = {}

    @property
    def is_alive(self) -> bool:
        return self.gate is not None

    def _work(self, _: Fate) -> None:
        try:
            self.result = self._run()
        except BaseException as error:
            self.error = error
        self.gate = None

    # From outside.

    def start(self) -> None:
        """Run it until it stops for the first time."""
        self._go(Fate.GO)

    def go(self, fate: Fate = Fate.GO, *, fault: dict[str, Any] | None = None, ends: str = "") -> None:
        """Let it do what it has stopped before, and run it until it stops again, or ends.

        :param fault: what the service does to its call.
        :param ends: how the fault ends the try: soon, or for good.
        """
        self._fault, self._ends = fault or {}, ends
        self._go(fate)

    def skip_to(self, gate: Gate | None, *, may_be_old: bool = False) -> bool:
        """Let it do what is no step of the model; return whether it stops where the model's does, then.

        :param gate: where that is; None if the model's process has ended.
        :param may_be_old: whether what it stores there may be no news.
        """
        while self.gate in (*PASSING, *_passing_before(gate, may_ask=bool(self._first_id) or self._is_keyed)):
            if may_be_old and self.gate is Gate.REWRITE:
                return True
            self.go()
        return self.is_alive and self.gate is gate

    def _go(self, fate: Fate) -> None:
        os.environ[CONNECTION] = self._connection
        self._greenlet.switch(fate)

    def abandon(self) -> None:
        """End it, whatever it was about to do."""
        if self.is_alive:
            self.go(Fate.DIE)

    # From within.

    def stop(self, gate: Gate) -> Fate:
        """Stop before something; return what becomes of it."""
        if self._is_dead:
            raise ProcessCrashed
        self.gate = gate
        fate: Fate = getcurrent().parent.switch()
        self.passed.append(gate)
        if fate is Fate.DIE:
            self._die()
        return fate

    def _die(self) -> None:
        self._is_keyed = self.has_lost_response = False
        self._is_dead = True
        raise ProcessCrashed

    def wait(self) -> None:
        self._has_waited = True

    def send(self, real_send: Callable[..., Any], http: Any, settings: Any, request: Request, *others: Any) -> Any:
        """Make a call, or meet its fate."""
        if self._is_dead:
            raise ProcessCrashed
        gate = self._gate_of(request)
        fate = self.stop(gate) if gate else Fate.GO
        if gate is Gate.SEND:
            self._has_waited = False
        sandbox = self._service.account_at(settings.base_url).sandbox
        go_on = partial(real_send, http, settings, request, *others)
        match fate:
            case Fate.FAULT:
                sandbox.plan_faults({"kind": "error", **self._fault})
                return go_on()
            case Fate.FULL:
                sandbox.patch_account(outstanding_transfer_limit=0)
                response = go_on()
                sandbox.patch_account(outstanding_transfer_limit=10**6)
                return response
            case Fate.LOSE:
                self.has_lost_response = True
                self.late.append(_kept(settings, request))
                sandbox.plan_faults({"kind": "reset", "effect": "before"})
                return go_on()
            case Fate.DIE_IN_CALL:
                self.late.append(_kept(settings, request))
                self._die()
        response = go_on()
        if fate is Fate.DIE_AFTER:
            self._die()
        if gate is Gate.CREATE and response.status == 201:
            self.created.append(_id_of(response))
        return response

    def _gate_of(self, request: Request) -> Gate | None:
        last = self.passed[-1] if self.passed else None
        if request.operation != "get":
            # After several pages, the first one is read again.
            is_next_page = bool(request.params.get("cursor")) or last is Gate.LIST
            return None if request.operation == "list" and is_next_page else _GATES[request.operation]
        if self._first_id and request.path.endswith(self._first_id):
            return Gate.READ_FIRST if self._is_sending else None
        if self._ends or last is Gate.LIST:
            return None
        if self.kind == "send":
            return None if last is Gate.SEND and not self._has_waited else Gate.READ
        if last is Gate.SEND:
            return Gate.READ_AGAIN if self._has_waited else None
        return None if last is Gate.READ_AGAIN else Gate.READ

    def claim(self, row: MemoryRow) -> None:
        """Stop before a claim of a row: of the task's own memory, or of a key's."""
        is_keyed = row._key.delivery_key is not None
        self._is_keyed |= is_keyed
        self.stop(Gate.CLAIM if is_keyed else Gate.BEGIN)

    def save(self, store: Any, memory: Memory) -> None:
        """Stop before a write of its memory."""
        if self._is_dead:
            raise ProcessCrashed
        if self._is_verifying:
            return
        is_news = self._is_news(store, memory)
        if is_news:
            self._is_sending = memory.phase is Phase.SENDING and self.kind == "deliver"
        is_of_create = bool(self.passed) and self.passed[-1] is Gate.CREATE
        is_last = self._ends == "soon" or (memory.phase is Phase.HANDED_ON and self.kind != "attach")
        if not (is_last or is_of_create):
            self.stop(Gate.WRITE if is_news else Gate.REWRITE)

    @contextmanager
    def verifying(self, store: Any, memory: Memory) -> Iterator[None]:
        """Stop before the first write of a try, if it is one of its task."""
        if self._is_dead:
            raise ProcessCrashed
        self._is_news(store, memory)
        if self.kind != "attach" and not _is_of_key(store):
            self.stop(Gate.WRITE)
        self._is_verifying = True
        yield
        self._is_verifying = False

    def _is_news(self, store: Any, memory: Memory) -> bool:
        files = memory.files if self.kind == "attach" else None
        about = (memory.phase, memory.draft_id, files)
        before, self._stored[id(store)] = self._stored.get(id(store)), about
        return before != about


def _is_of_key(store: Any) -> bool:
    return isinstance(store, RowMemoryStore) and store.row._key.delivery_key is not None


def _kept(settings: Any, request: Request) -> LateCall:
    if upload := request.upload:
        body = b"".join(upload.chunks())
        request = replace(request, upload=replace(upload, chunks=lambda: iter([body])))
    return LateCall(settings, request)


def _id_of(response: Any) -> str:
    return str(json.loads(response.body)["id"])


@contextmanager
def gates(running: Callable[[], Process | None]) -> Iterator[None]:
    """Let processes stop at their gates within the block.

    :param running: returns the process that runs now; None if it is the test.
    """
    with ExitStack() as stack:
        real_send = transport.send

        def send(*arguments: Any) -> Any:
            process = running()
            return process.send(real_send, *arguments) if process else real_send(*arguments)

        stack.enter_context(mock.patch.object(transport, "send", send))
        for owner, name, before in _METHODS:
            stack.enter_context(mock.patch.object(owner, name, _stopping(getattr(owner, name), before, running)))
        yield


def _stopping(method: Any, before: Callable[..., Any], running: Callable[[], Process | None]) -> Any:
    def stop_before(self: Any, *arguments: Any, **options: Any) -> Any:
        if (process := running()) is None:
            return method(self, *arguments, **options)
        with before(process, self, *arguments) or nullcontext():
            return method(self, *arguments, **options)

    return stop_before


def _begin(process: Process, store: Any) -> None:
    process.stop(Gate.BEGIN)


def _claim(process: Process, row: MemoryRow, *_: Any) -> None:
    process.claim(row)


def _ask(process: Process, facts: TaskFacts) -> None:
    if process.kind != "attach":
        process.stop(Gate.ASK)


_METHODS: Final[tuple[tuple[type, str, Callable[..., Any]], ...]] = (
    (TaskMemoryStore, "begin", _begin),
    (MemoryRow, "claim", _claim),
    *((store, "save", Process.save) for store in (TaskMemoryStore, RowMemoryStore)),
    *((store, "save_verified", Process.verifying) for store in (TaskMemoryStore, RowMemoryStore)),
    (TaskFacts, "check_still_running", _ask),
)
