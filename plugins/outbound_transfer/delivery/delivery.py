"""A delivery in one attempt of a task: claim the row, decide, act.

The order of the effects makes a crash at any point safe. Each line is stored, or the attempt fails, before the next:

1. This attempt has begun: :meth:`.Row.claim`. No earlier one can store anything from then on (StaleTry), nor send.
2. The draft's id: :meth:`Delivery.prepare`. A draft whose id nobody has stored expires unsent.
3. Each file: its name before its upload, its record after it, and that all are attached: :meth:`.Filling.fill`.
4. A send begins: :class:`.Sending`. Each call reads the row, and the draft unless it was filled in the last minute.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from outbound_transfer.client.client import Client
from outbound_transfer.client.errors import AlreadyDelivered, InvalidState, MalformedResponse, NotFound, WrongTransfer
from outbound_transfer.client.models import Transfer, identity_of
from outbound_transfer.client.new_transfer import NewTransfer
from outbound_transfer.delivery.attempt import Attempt, describe
from outbound_transfer.delivery.decision import UNSENT, Act, Known, Phase, Refuse, Seen, decide
from outbound_transfer.delivery.draft import DraftOutdated, Filling, Sending, reused_id
from outbound_transfer.delivery.row import Memory, Row, hash_of, is_of
from outbound_transfer.delivery.sent import FindSources, changed_files, check_sent
from outbound_transfer.delivery.shown import show
from outbound_transfer.files.sources import Source
from outbound_transfer.observability import metrics
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.errors import DeliveryKeyInUse
from outbound_transfer.wording import pluralize

log = logging.getLogger(__name__)


@dataclass
class Order:
    """The delivery that a task is asked for. By default, other tasks attach the files."""

    new: NewTransfer
    find_sources: FindSources = tuple
    is_outdated: Callable[[], bool] = bool  # called before each send call: whether to create another draft
    sends: bool = True  # False (the operator's send=False): the draft stays, for another task to send
    chosen: Sequence[str] = ()  # digests of those addresses of another transfer; see RedeliverFilesOperator
    siblings: Sequence[str] = ()  # as those of Memory

    def digests(self, salt: str) -> dict[str, str]:
        """Return a short digest of each argument of a draft, except phone numbers and the answer."""
        # Each recipient gets an email of their own: the order, perhaps that of a set or a query, has no meaning.
        recipients = sorted([one.email, one.name] for one in self.new.recipients)
        plain: dict[str, Any] = {**msgspec.structs.asdict(self.new), "recipients": recipients}
        del plain["security_answer"]  # it could be guessed, like a phone number
        return {name: hash_of(salt, value)[:16] for name, value in plain.items()}


class Delivery:
    """One attempt of a delivery, whose row it has claimed."""

    def __init__(self, client: Client, row: Row, attempt: Attempt) -> None:
        self.client, self.row, self.attempt = client, row, attempt
        self.transfer: Transfer | None = None  # the draft or the sent transfer, as the service showed it last
        self.has_sent = False  # whether this process has sent it, if it was sent
        self._sources: Sequence[Source] = ()

    @property
    def memory(self) -> Memory:
        return self.row.memory

    @property
    def may_have_sent(self) -> bool:
        """Whether an earlier attempt may have sent something."""
        return self.memory.phase in (Phase.SENDING, Phase.DISCARDING)

    def known(self) -> Transfer:
        """Return :attr:`transfer`, which was read or created before."""
        assert self.transfer is not None
        return self.transfer

    def deliver(self, order: Order, max_parallel: int, on_draft: Callable[[], object] = lambda: None) -> Transfer:
        """Create, fill and send a draft, or return what was sent before; or the draft if another task sends it."""
        act, fresh = self.prepare(order), None
        on_draft()
        if act is Act.RETURN:
            self._check_returned(order)
            return self.known()
        if act is Act.CREATE:
            filling = Filling(self.client, self.row, self.memory.transfer_id)
            filling.fill(self._sources, {}, max_parallel)
            self.transfer = fresh = msgspec.structs.replace(self.known(), files=tuple(filling.records()))
        try:
            if order.sends:
                return self.send(fresh, order.is_outdated)
            if order.is_outdated():
                raise DraftOutdated
        except DraftOutdated:
            log.info("The inputs of draft %s changed before its send", self.memory.transfer_id)
            if self.settle(seen=Seen.DRAFT) is not Act.RETURN:
                raise
            check_sent(self.memory, self.known())
        return self.known()

    def prepare(self, order: Order) -> Act:
        """Create a draft, or find what became of an earlier one: ``CREATE``, ``RESUME`` or ``RETURN``."""
        before, now = self.memory.input, order.digests(self.memory.salt)
        differences, earlier = ", ".join(sorted(name for name in before if before[name] != now.get(name))), self.memory
        act = self.settle(differences, has_filled=bool(self.attempt.claim))
        if act is Act.CREATE:
            if earlier.transfer_id:
                log.info("Creating a new draft, as an earlier attempt did not send draft %s", earlier.transfer_id)
            self._create(order)
        return act

    def settle(self, differences: str = "", *, has_filled: bool = False, seen: Seen = Seen.NOTHING_YET) -> Act:
        """Read, decide and act by :mod:`.decision`, until nothing is left that may be sent, or it is to be used."""
        while True:
            act = decide(Known(self.memory.phase, seen, bool(differences), has_filled))
            match act:
                case Act.READ:
                    seen = self.look()
                    continue
                case Act.FORGET:
                    log.warning("Giving up transfer %s of an earlier attempt", self.memory.transfer_id)
                    self.row.save(Memory.emptied)
                case Act.DISCARD:
                    seen = self._delete()
                    continue
                case Refuse():
                    raise self._refusal(act, differences)
                case _:
                    return act
            seen = Seen.NOTHING_YET

    def look(self) -> Seen:
        """Read the row's transfer, and store if it was sent."""
        memory, settings = self.memory, self.client.settings
        if memory.account != settings.account:
            return Seen.ELSEWHERE
        transfer = self.client.find_transfer(memory.transfer_id)
        if transfer is None or not is_of(memory, transfer):
            is_own_key = memory.key_check == hash_of(memory.salt, settings.transfer_api_key)
            return Seen.GONE if is_own_key else Seen.ELSEWHERE
        self.transfer = transfer
        if transfer.is_draft:
            return Seen.DRAFT
        self._show(transfer)
        if memory.phase is not Phase.SENDING:  # a late send of an earlier attempt
            self.row.save(phase=Phase.SENDING)
        return Seen.SENT

    def look_here(self) -> Seen:
        """Read the row's transfer, unless it may be there under another API key."""
        if (seen := self.look()) is Seen.ELSEWHERE:
            doubt = "" if self.memory.phase in UNSENT else "It may have been sent. "
            raise WrongTransfer(
                f"The service does not show transfer {self.memory.transfer_id}: it was removed, or the connection has "
                f"another user's API key. {doubt}Nothing is done with it. Correct the connection."
            )
        return seen

    def send(self, draft: Transfer | None = None, is_outdated: Callable[[], bool] = bool) -> Transfer:
        """Send the draft, again after a failed call; see :class:`.Sending`."""
        self.transfer = transfer = Sending(self, draft, is_outdated).send()
        self._show(transfer)
        if self.has_sent:
            log.info("Sent transfer %s: %s, expires %s", transfer.id, transfer.status, transfer.expires_at)
        else:
            self._log_returned()
        return transfer

    def discard(self) -> bool:
        """Delete the draft; return False if it was sent."""
        if (seen := self.look_here()) is Seen.GONE and self.client.find_transfer(self.memory.transfer_id):
            raise reused_id(self.memory.transfer_id)
        return self.settle(seen=seen) is not Act.RETURN

    @contextmanager
    def closing(self, is_final: Callable[[BaseException], bool], open_client: Callable[[], Client]) -> Iterator[None]:
        """Delete the draft, by a client that gives up soon, if the block ends unsent and no attempt follows."""
        try:
            yield
        except BaseException as error:
            try:
                if is_final(error) and self.memory.phase in UNSENT:
                    with open_client() as self.client:
                        self.settle()
            except Exception as failure:
                log.warning("Could not delete this task's draft '%s': %s", self.memory.transfer_id, failure)
            raise

    def _create(self, order: Order) -> None:
        self._sources = order.find_sources()  # a missing file must leave no draft behind
        client, by, salt = self.client, self.attempt.by, secrets.token_hex(8)
        self.transfer = transfer = client.create_transfer(order.new)
        self.row.save(
            phase=Phase.DRAFT,
            transfer_id=transfer.id,
            account=client.settings.account,
            salt=salt,
            key_check=hash_of(salt, client.settings.transfer_api_key),
            input=order.digests(salt),
            identity=hash_of(salt, identity_of(transfer)),
            item=hash_of(by.task[:2], identity_of(transfer)),
            asked=by.asked,
            clear_number=by.clear_number,
            security=order.new.security or "",
            is_rehearsal=client.settings.rehearses,
            chosen=order.chosen,
            siblings=order.siblings,
        )
        self._show(transfer)
        log.info("Created draft %s for %s", transfer.id, pluralize(len(order.new.recipients), "recipient"))

    def _delete(self) -> Seen:
        transfer_id = self.row.save(phase=Phase.DISCARDING).transfer_id
        try:
            with suppress(NotFound):
                self.client.discard_transfer(transfer_id)
        except InvalidState:
            self.row.save(phase=Phase.SENDING)
            if (seen := self.look()) is Seen.DRAFT:
                raise MalformedResponse(f"get: {transfer_id} is shown as a draft, but cannot be deleted") from None
            return seen
        self.row.save(Memory.emptied)
        log.info("Discarded draft %s", transfer_id)
        return Seen.NOTHING_YET

    def _show(self, transfer: Transfer) -> None:
        show(self.attempt.conn_id, lambda: self.client.settings.account, {transfer.id: transfer}, self.row.rows)

    def _check_returned(self, order: Order) -> None:
        """Check that a sent transfer is what was meant; after a clear, that its files are still those to deliver."""
        memory, by = self.memory, self.attempt.by
        check_sent(memory, self.known())
        # A retry asks for nothing new; a run that is made again, a task that takes over a key, and a clear do. A clear
        # of a running task does not raise max_tries.
        is_retry = (memory.asked, memory.clear_number) == (by.asked, by.clear_number)
        if changes := changed_files(memory, memory.entries.values(), None if is_retry else order.find_sources):
            raise self._refusal(Refuse.OTHER_INPUT, changes)
        self._log_returned()

    def _log_returned(self) -> None:
        transfer, by = self.known(), describe(self.memory.asked[0])
        log.info("Nothing is sent: transfer %s (%s), created by %s, was already sent", transfer.id, transfer.status, by)

    def _refusal(self, reason: Refuse, differences: str) -> AlreadyDelivered:
        key = self.row.delivery_key
        return AlreadyDelivered(
            reason.value.format(
                subject=f"Delivery key {key!r}" if key else "This run",
                id=self.memory.transfer_id,
                differences=differences,
                then=self.memory.account,
                now=self.client.settings.account,
                another=f"trigger a new Dag run{' with another delivery_key' if key else ''}",
            )
        )


def begin_delivery(client: Client, rows: Deliveries, attempt: Attempt, delivery_key: str | None = None) -> Delivery:
    """Claim the row of an attempt's delivery. Work begun under another key, or without one, is settled first.

    :raises DeliveryKeyInUse: another task that Airflow runs, or is going to, delivers under the key.
    """
    own = row = Row.of_task(rows, attempt.by.task)
    if delivery_key is not None:
        row = Row(rows, hash_of("delivery_key", client.settings.account, delivery_key), delivery_key)
    if attempt.claim:  # of the process that was deferred, on the row that it delivers from
        row.resume(attempt.claim)
        return Delivery(client, row, attempt)
    if attempt.by.try_number > 1 and not own.read()[0]:
        metrics.MISSING_ROWS.emit(conn_id=attempt.conn_id)
        log.warning(
            "The table of deliveries has no earlier attempt of this task. If one sent a transfer and its row "
            "was deleted or restored, this attempt sends again"
        )
    key = row.key if row.delivery_key else ""
    if (before := own.claim(attempt.by, is_own=True).key) != key:
        _settle(client, Row(rows, before) if before else own, attempt)
        own.save(key=key)
    if key:
        _claim(client, row, attempt)
    return Delivery(client, row, attempt)


def _settle(client: Client, row: Row, attempt: Attempt) -> None:
    """Settle what the task began under the key that it used before, or without a key."""
    memory = row.read()[1]
    if attempt.name not in (memory.owner, memory.asked[0]):
        return  # another task has claimed the row of that key since
    _claim(client, row, attempt)
    if Delivery(client, row, attempt).settle() is Act.RETURN:
        raise AlreadyDelivered(
            f"Transfer {row.memory.transfer_id} was sent under the delivery_key or in the account that this task "
            "used before. Nothing is sent. To deliver this, trigger a new Dag run."
        )


def _claim(client: Client, row: Row, attempt: Attempt) -> None:
    """Claim the row of a key; what was sent under it is returned without a claim, while its owner waits for pickup."""

    def require_free(memory: Memory) -> None:
        handed_on = memory.phase is Phase.HANDED_ON
        if memory.owner not in ("", attempt.name) and attempt.is_at_work(memory.owner, has_handed_on=handed_on):
            key = repr(row.delivery_key) if row.delivery_key else "that this task used before"
            raise DeliveryKeyInUse(
                f"The {describe(memory.owner)} delivers under the delivery key {key}. Nothing is sent; a retry returns "
                "what that task sends"
            )

    try:
        row.claim(attempt.by, require_free)
    except DeliveryKeyInUse:
        memory = row.read()[1]
        transfer = client.find_transfer(memory.transfer_id) if memory.phase is Phase.SENDING else None
        if transfer is None or transfer.is_draft:
            raise
