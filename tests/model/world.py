"""Tasks of one delivery on the production's own code, whose every effect is a step: there, anything may happen.

A task runs in this process, and so does what happens meanwhile: an action at a step calls other tasks, and returns, or
raises :class:`Killed`. An effect is a request (before it arrives, and after it), a write of a row, or a sleep.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec

from model.service import Service, Stored
from outbound_transfer.client import client, transport
from outbound_transfer.client.client import Client, RetryPolicy
from outbound_transfer.client.errors import CallError, OutboundTransferError, SourceMissing
from outbound_transfer.client.models import Transfer
from outbound_transfer.client.new_transfer import NewTransfer, build_new_transfer
from outbound_transfer.client.settings import Settings
from outbound_transfer.delivery import draft, row
from outbound_transfer.delivery.attempt import FINISHED, Attempt, TaskTry, task_name
from outbound_transfer.delivery.decision import Act, Phase
from outbound_transfer.delivery.delivery import Delivery, Order, begin_delivery
from outbound_transfer.files.sources import Source
from outbound_transfer.operators.errors import DeferRequested, fails_without_retry
from outbound_transfer.store.errors import DeliveriesUnavailable
from support.memory import InMemoryRows, Table

Action = Callable[[], object]

RETRIES = 1
HELD = {"a.csv": b"abc", "b.csv": b"de"}


class Killed(BaseException):
    """The process has ended."""


def kill() -> None:
    raise Killed


@dataclass
class Instance:
    """A task instance, as Airflow knows it."""

    task: tuple[str, str, str, int]
    tries: int = 0
    max_tries: int = RETRIES
    state: str | None = None
    claim: int = 0
    has_succeeded: bool = False


class ModelAttempt(Attempt):
    """The production's, with Airflow's answers from the world."""

    def __init__(self, world: World, instance: Instance, claim: int) -> None:
        run = instance.task[1]
        self.world, self.conn_id, self.claim = world, "conn", claim
        tries = instance.tries, world.started(run), instance.max_tries, world.clears.get(run, 0)
        self.by = TaskTry(*instance.task, *tries)
        self.may_have_twins = world.may_have_twins or bool(self.by.clear_number)

    def check_still_running(self) -> None:
        """Airflow may answer late: no promise depends on it."""

    def is_at_work(self, name: str, *, has_handed_on: bool = False) -> bool:
        return self.world.is_polite and self.state_of(name) not in FINISHED

    def state_of(self, name: str) -> str | None:
        return next((each.state for each in self.world.instances.values() if task_name(each.task) == name), None)


class ModelRows(InMemoryRows):
    """The table, whose every write is a step, and whose every statement may fail."""

    def __init__(self, world: World) -> None:
        super().__init__(world.table)
        self.world = world

    def read(self, key: str) -> Any:
        return self.world.statement(lambda: super(ModelRows, self).read(key))

    def find(self, transfer_id: str) -> Any:
        return self.world.statement(lambda: super(ModelRows, self).find(transfer_id))

    def find_twin(self, own: Collection[str], twin: str, run_started: str) -> Any:
        return self.world.statement(lambda: super(ModelRows, self).find_twin(own, twin, run_started))

    def put(self, key: str, version: int, row: Any, kept: Any = None) -> Any:
        def put() -> bool:
            stored = super(ModelRows, self).put(key, version, row, kept)
            if stored:
                self.world.hear(key, row)
            return stored

        self.world.step(f"put {row.phase} before")
        stored = self.world.statement(put)
        self.world.step(f"put {row.phase} after")
        return stored


class World:
    """:param attachers: the files of each attaching task. :param prepare: called before each schedule.

    :ivar at: what happens at a step, by its number. :ivar failing: how a statement of the table fails, by its number.
    """

    eager = True  # more than a second passes between two uploads
    drafts = 1  # that an undisturbed delivery makes
    deferrable = may_have_twins = False
    is_polite = True  # whether a delivery key is left to an owner that is at work
    recipients: Sequence[str] = ("ann@example.com",)

    def __init__(self, attachers: dict[str, dict[str, bytes]], prepare: Callable[[Any], object] = lambda world: None):
        self.attachers, self.prepare = attachers, prepare

    def fresh(self) -> World:
        self.service, self.table = Service(), Table()
        self.files = {who: {name: (data, 1) for name, data in files.items()} for who, files in self.attachers.items()}
        self.missing: set[str] = set()
        self.subject = "Report"
        self.instances: dict[str, Instance] = {}
        self.clears: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.steps = self.statements = 0
        CLOCK.pace = 2.0 if self.eager else 0.0
        self.at: dict[int, Action] = {}
        self.failing: dict[int, str] = {}
        self.log: list[str] = []
        self.requests: list[tuple[Settings, transport.Request, int]] = []
        self.violations: list[str] = []
        self.status: dict[str, str] = {}
        self.xcom: dict[str, str] = {}
        self.heard: dict[str, row.Memory] = {}
        # By task and run: who has begun last to look for files, and whether it has said that all are attached.
        self.openings = 0
        self.attaching: dict[tuple[str, int], tuple[int, bool]] = {}
        self.newest: dict[tuple[str, str], tuple[str, int]] = {}
        self.account, self.key, self.users = "a.example.com", "k1", {"k1": "ann", "k2": "ann", "k3": "bob"}
        self.allowed, self.complete, self.hidden, self.leaves = 1, set[str](), False, False
        self.gateway = ""  # the method of the next request that a gateway answers in the service's place
        self.era, self.eras = 0, dict[str, int]()
        self.process = self._process()
        self.prepare(self)
        return self

    def _process(self) -> SimpleNamespace:
        return SimpleNamespace(is_dead=False, era=self.era, account="", row=None, asked="", opening=0)

    # Effects.

    def step(self, what: str) -> None:
        if self.process.is_dead:
            raise Killed
        self.steps += 1
        assert self.steps < 2_000, "it never ends"
        self.log.append(what)
        if action := self.at.pop(self.steps, None):
            process = self.process
            try:
                action()
            except Killed:
                process.is_dead = True
                raise

    def statement(self, run: Callable[[], Any]) -> Any:
        self.statements += 1
        how = self.failing.pop(self.statements, "")
        if how == "before":
            raise DeliveriesUnavailable("nothing was done")
        result = run()
        if how == "after":
            raise DeliveriesUnavailable("it was done")
        return False if how == "unheard" and result is True else result

    def request(self, settings: Settings, request: transport.Request) -> transport.Response:
        what = f"{request.method} {request.path}"
        self.requests.append((settings, request, self.steps + 1))
        if self.process.asked not in request.path:
            self.violations.append(f"{what}, and it was asked for {self.process.asked}")
        self.step(f"{what} before")
        if request.method == self.gateway:
            self.gateway = ""
            return transport.Response(200, {}, b"<html>")
        count = len(self.service.billed)
        response, era = self.perform(settings, request, content_of(request)), self.process.era
        if len(self.service.billed) > count and (begun := self.attaching_tasks()):
            self.violations.append(f"sent, but {begun} had not ended")
        if response.status == 201 and request.body:
            self.eras[msgspec.json.decode(response.body)["id"] + settings.account] = era
        self.step(f"{what} after")
        return response

    def perform(self, settings: Settings, request: transport.Request, content: bytes | None) -> transport.Response:
        billed = len(self.service.billed)
        user = self.users[settings.transfer_api_key]
        response = self.service.answer(settings.account, user, request, content)
        for sent in self.service.billed[billed:]:
            self.check_bill(sent)
        return response

    def lose(self) -> Action:
        """Return what lets the request that is made now arrive later."""
        settings, request, _ = self.requests[-1]
        return partial(self.perform, settings, request, content_of(request))

    def sleep(self, seconds: float) -> None:
        self.step(f"sleep {seconds:.0f}")

    def client(self) -> Client:
        self.process.account = self.account
        settings, policy = settings_of(self.account, self.key), RetryPolicy(max_attempts=4, slot_timeout=100.0)
        client = Client(settings, policy=policy, sleep=self.sleep, on_retry=self._on_retry)
        client._http = self  # type: ignore[assignment]
        return client

    def _on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        if self.deferrable and error.waits_for_slot:
            raise DeferRequested(seconds)

    # What Airflow does.

    def started(self, run: str) -> str:
        return f"2026-01-01T00:{self.starts.get(run, 0):02}:00"

    def instance(self, task: str) -> Instance:
        return self.instances.setdefault(task, Instance(self.ids(task)))

    def ids(self, task: str) -> tuple[str, str, str, int]:
        return "d", "r", task, -1

    def clear(self, *tasks: str, is_over: bool = False) -> None:
        """Clear tasks; ``is_over``: their run has ended."""
        for run in {self.instance(task).task[1] for task in tasks}:
            self.clears[run] = self.clears.get(run, 0) + 1
            self.starts[run] = self.starts.get(run, 0) + is_over
        for task in tasks:
            instance = self.instance(task)
            if instance.state != "running":  # otherwise Airflow counts it as a retry
                instance.max_tries = instance.tries + RETRIES
            instance.state, instance.claim = None, 0

    def one(self, task: str) -> str:
        """Run one attempt of a task in a process of its own, cleared if it has ended or runs; return how it ended."""
        instance = self.instance(task)
        if is_cleared := instance.state not in (None, "up_for_retry", "deferred"):
            self.clear(task)
        claim = instance.claim if instance.state == "deferred" else 0
        instance.tries += not claim
        instance.state, number = "running", instance.tries
        outer, self.process = self.process, self._process()
        end, process = "up_for_retry", self.process
        process.is_cleared = is_cleared
        try:
            attempt = ModelAttempt(self, instance, claim)
            process.by, process.attaching = attempt.by, (task, process.era)
            self.step(f"{task} begins")
            getattr(self, task.partition(":")[0])(attempt, task)
            status, end = "ok", "success"
        except DeferRequested:
            status, end = "deferred", "deferred"
        except OutboundTransferError as error:
            status = f"{type(error).__name__}: {error}"
        except Killed:
            status = "killed"
        except AssertionError as error:
            status = f"AssertionError: {error}"
            self.violations.append(status)
        finally:
            self.process = outer
        if "already delivered" in status and not self.service.billed:
            self.violations.append(f"nothing was sent: {status}")
        self.status[task] = status
        if number == instance.tries and instance.state == "running":
            instance.state = "failed" if end == "up_for_retry" and number > instance.max_tries else end
            instance.claim = process.row.claim_number if end == "deferred" and process.row else 0
            instance.has_succeeded |= end == "success"
        return status

    def run(self, *tasks: str, killed_at: int = 0, dies: bool = False) -> None:
        """Run attempts, which are killed at a step of theirs; then the process that they have overtaken may die."""
        at = self.steps + killed_at
        if killed_at:
            self.at[at] = kill
        for task in tasks:
            self.one(task)
        if killed_at:
            self.at.pop(at, None)
        if dies:
            raise Killed

    def task(self, task: str, tries: int = 2) -> bool:
        """Run attempts until one was successful."""
        deferrals = iter(range(3))  # then the wait for a slot is over, and Airflow fails the task
        while tries:
            tries -= self.one(task) != "deferred" or next(deferrals, None) is None
            if self.instance(task).state == "success":
                return True
        return False

    def pipeline(self, tries: int = 2) -> bool:
        """Run all tasks in their order, each if the one before was successful."""
        return all(self.task(task, tries) for task in self.tasks())

    def tasks(self) -> list[str]:
        return ["create", *(f"attach:{who}" for who in self.files), "send"]

    # Tasks. Each call is one attempt.

    def create(self, attempt: Attempt, task: str) -> None:
        self.xcom.pop("id", None)
        delivery = self.begin(attempt)
        if delivery.prepare(Order(self.new())) is Act.CREATE:
            delivery.row.save(phase=Phase.HANDED_ON)
        self.xcom["id"] = delivery.memory.transfer_id

    def attach(self, attempt: Attempt, task: str) -> None:
        client, found, transfer_id = self.find_row()
        who = task.partition(":")[2]
        filling = draft.Filling(client, found, transfer_id, attempt.name)
        find, wanted = self.sources(who), {}

        def find_now(gone: list[Any] | None = None) -> list[Source]:
            if gone is None:
                if self.process.opening >= self.attaching.get(self.process.attaching, (0,))[0]:
                    self.attaching[self.process.attaching] = self.process.opening, False
                wanted.update({name: digest_of(data) for name, (data, _) in self.files[who].items()})
            return find(gone)

        filling.attach(find_now, 1)
        if wanted and wanted != (held := {name: each and each.sha256 for name, each in filling.files.items()}):
            self.violations.append(f"green, but {held} is attached, and not {wanted}")

    def send(self, attempt: Attempt, task: str) -> None:
        if not all(self.instance(each).has_succeeded for each in self.tasks()[:-1]):
            raise OutboundTransferError("Airflow does not start it")
        client, found, transfer_id = self.find_row()
        self.process.row = found
        if attempt.claim:
            found.resume(attempt.claim)
        else:
            phases = Phase.HANDED_ON, Phase.SENDING
            found.claim(attempt.by, lambda memory: row.require_draft(memory, transfer_id, *phases))
        self.check_green(Delivery(client, found, attempt).send())

    def discard(self, attempt: Attempt, task: str) -> None:
        if not (transfer_id := self.xcom.get("id")):
            return
        client, self.process.asked = self.client(), transfer_id
        if found := row.find_row(ModelRows(self), client.settings.account, transfer_id):
            found.claim(attempt.by, lambda memory: row.require_draft(memory, transfer_id, *Phase))
            Delivery(client, found, attempt).discard()
            stored = self.service.transfers.get((client.settings.account, transfer_id))
            if stored and stored.status == "draft":
                self.violations.append(f"{transfer_id} was discarded, and is there")
        else:
            client.discard_transfer(transfer_id)

    def deliver(self, attempt: Attempt, task: str, key: str | None = None) -> None:
        delivery = self.begin(attempt, key)
        self.process.row = delivery.row

        def is_final(error: BaseException) -> bool:
            return not isinstance(error, DeferRequested) and (not attempt.has_retries or fails_without_retry(error))

        order = self.order(task)
        with delivery.closing(is_final, self.client):
            transfer = delivery.deliver(order, 1, lambda: self.xcom.update(id=delivery.memory.transfer_id))
        self.check_green(transfer)
        if transfer.subject != order.new.subject:
            self.violations.append(f"green, but {transfer.subject!r} was sent, and not {order.new.subject!r}")
        sent = [each.content for each in self.service.billed if each.id == transfer.id]
        if self.process.is_cleared and not self.missing and sent != [self.wanted()]:
            self.violations.append(f"green after a clear, but {sent} was sent, and not {self.wanted()}")

    def order(self, task: str) -> Order:
        return Order(self.new(), self.sources(next(iter(self.files))))

    def new(self) -> Any:
        return new_transfer(self.subject, tuple(self.recipients))

    def begin(self, attempt: Attempt, key: str | None = None) -> Any:
        return begin_delivery(self.client(), ModelRows(self), attempt, key)

    def find_row(self) -> tuple[Client, Any, str]:
        if "id" not in self.xcom:
            raise OutboundTransferError("Airflow does not start it: there is no id")
        client, self.process.asked = self.client(), self.xcom["id"]
        return client, row.require_row(ModelRows(self), client.settings.account, self.xcom["id"]), self.xcom["id"]

    def sources(self, who: str) -> Callable[..., list[Source]]:
        def find(gone: list[Any] | None = None) -> list[Source]:
            for name in sorted(self.missing & self.files[who].keys()):
                if gone is None:
                    raise SourceMissing(name)
                gone.append(SourceMissing(name))
            return [self._source(who, name) for name in self.files[who] if name not in self.missing]

        return find

    def _source(self, who: str, name: str) -> Source:
        def now() -> tuple[bytes, int]:
            if name in self.missing or name not in self.files[who]:
                raise FileNotFoundError(name)
            return self.files[who][name]

        def stat() -> tuple[int, str]:
            return len(now()[0]), str(now()[1])

        return Source(name, name, *stat(), lambda: io.BytesIO(now()[0]), stat)

    # The judge: what the service has billed and stored, never what the client believes.

    def hear(self, key: str, stored: Any) -> None:
        """Note what a row says of its draft, and whose attempts have claimed it."""
        memory, by = msgspec.json.decode(stored.memory, type=row.Memory), self.process.by
        for name, attempt in memory.tries.items():
            self.newest[key, name] = max(attempt, self.newest.get((key, name), attempt))
        if (by.run_started_at, by.try_number) < self.newest.get((key, task_name(by.task)), ("", 0)):
            self.violations.append("an attempt that was overtaken has stored something")
        process, entry = self.process, memory.entries.get(task_name(by.task))
        if entry:  # it attaches files, and this is the first that it stores, or another
            self.openings += not process.opening
            process.opening = process.opening or self.openings
            if not entry.is_open and self.attaching.get(process.attaching) == (process.opening, False):
                self.attaching[process.attaching] = process.opening, True
        if memory.transfer_id:
            self.heard[memory.transfer_id + memory.account] = memory

    def check_bill(self, sent: Stored) -> None:
        memory = self.heard.get(sent.id + sent.account)
        self.note_bill(sent)
        if len(billed := self.billed(self.eras.get(sent.id + sent.account, 0))) > self.allowed:
            self.violations.append(f"billed {len(billed)} times")
        if memory is None or memory.phase not in (Phase.SENDING, Phase.DISCARDING):
            self.violations.append(f"sent, but its row says {memory and memory.phase}")
        elif sent.id + sent.account not in self.complete:
            self.violations.append(f"sent {sent.content}, said {memory.entries}")

    def note_bill(self, sent: Stored) -> None:
        """Note whether what is sent holds what each attaching task's closing write says."""
        memory = self.heard.get(sent.id + sent.account)
        is_closed = memory and len(memory.entries) == self.entries() and memory.files() is not None
        if memory and is_closed and {name: held.sha256 for name, held in memory.held.items()} == sent.content:
            self.complete.add(sent.id + sent.account)

    def billed(self, era: int) -> list[Stored]:
        """Return what was sent of what a run has made; a run that is made again under its id is another."""
        return [each for each in self.service.billed if self.eras.get(each.id + each.account, 0) == era]

    def entries(self) -> int:
        return max(sum(task.startswith("attach") for task in self.tasks()), 1)

    def check_green(self, transfer: Transfer) -> None:
        """Green means sent, once, complete."""
        account = self.process.account
        for each in self.service.billed:  # what a person has sent may be closed since
            self.note_bill(each)
        sent = [each for each in self.service.billed if (each.id, each.account) == (transfer.id, account)]
        if len(sent) != 1:
            self.violations.append(f"green, but {transfer.id} was sent {len(sent)} times")
        elif transfer.id + account not in self.complete:
            self.violations.append("green, but other files were sent")

    def wanted(self) -> dict[str, str]:
        return {name: digest_of(data) for files in self.files.values() for name, (data, _) in files.items()}

    def finish(self, tries: int = 3) -> bool:
        """End the trouble, and clear everything: it is delivered, or whoever clears it learns why not."""
        self.at, self.failing, self.service.busy = {}, {}, 0
        self.missing = set()
        self.clear(*self.tasks(), is_over=True)
        is_green, billed = self.pipeline(tries), self.billed(self.era)
        is_same = bool(billed) and (billed[-1].content, billed[-1].subject) == (self.wanted(), self.subject)
        if is_green and not (billed and is_same):
            self.violations.append(f"all green; sent {[each.content for each in billed]}, wanted {self.wanted()}")
        if not is_green and not self.is_excused(is_same=is_same):
            self.violations.append(f"not delivered: {self.status}")
        left = [each.id for each in self.known_drafts() if self.eras.get(each.id + each.account, 0) == self.era]
        if is_green and left and not self.hidden and not self.leaves:
            self.violations.append(f"drafts are left: {left}")
        if forgotten := [each.id for each in self.service.billed if not self.hidden and not self.rows_of(each)]:
            self.violations.append(f"no row knows {forgotten}, which were sent")
        return is_green

    def attaching_tasks(self) -> list[str]:
        begun = (
            task for (task, era), (_, is_over) in self.attaching.items() if era == self.process.era and not is_over
        )
        return [task for task in begun if self.instance(task).state != "skipped"]

    def rows_of(self, sent: Stored) -> list[str]:
        rows = self.table.rows.items()
        return [key for key, (_, row) in rows if (row.transfer_id, row.account) == (sent.id, sent.account)]

    def known_drafts(self) -> list[Stored]:
        """Return the drafts whose ids a row has stored."""
        drafts = (each for each in self.service.transfers.values() if each.status == "draft")
        return [each for each in drafts if each.id + each.account in self.heard]

    def has_row_in(self, *phases: Phase) -> bool:
        """Return whether that was the last that a row has said of a transfer."""
        return any(each.phase in phases for each in self.heard.values())

    def is_excused(self, *, is_same: bool) -> bool:
        """Return whether a refusal is right, and says so."""
        words = " ".join(self.status.values())
        refuses = "AlreadyDelivered" in words or ("WrongTransfer" in words and self.hidden)
        may_be_sent = self.has_row_in(Phase.SENDING, Phase.DISCARDING)
        return refuses and ((self.hidden and may_be_sent) or (bool(self.service.billed) and not is_same))


@lru_cache
def new_transfer(subject: str, recipients: tuple[str, ...]) -> NewTransfer:
    return build_new_transfer(subject=subject, recipients=recipients)


@lru_cache
def settings_of(account: str, key: str) -> Settings:
    return Settings(f"https://{account}", key)


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


def content_of(request: transport.Request) -> bytes | None:
    return b"".join(request.upload.chunks()) if request.upload else request.body


class Clock:
    """Tells draft.py whether a second has passed between two uploads."""

    now = pace = 0.0

    def monotonic(self) -> float:
        self.now += self.pace
        return self.now


CLOCK = Clock()


@contextmanager
def simulated() -> Iterator[None]:
    """Let clients of worlds call the fake service."""

    def send(world: Any, settings: Settings, request: transport.Request, *_: object) -> transport.Response:
        response: transport.Response = world.request(settings, request)
        return response

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(transport, "send", send))
        stack.enter_context(mock.patch.object(client, "open_client", return_value=None))
        stack.enter_context(mock.patch.object(draft, "time", CLOCK))
        yield
