"""A delivery in one attempt of a task: claim the row, decide, act.

The order of the effects makes a crash at any point safe. Each line is stored before the next one starts:

1. This attempt has begun: :meth:`.Row.claim`. From then on, no earlier one can store anything, so none begins a send.
2. The draft's id: :meth:`Delivery.prepare`. A draft whose id nobody has stored is never sent.
3. Each file: its name before its upload, its record after it, and that all are attached: :meth:`.Filling.fill`.
4. A send begins: :class:`.Sending`. Before each attempt, everything that may have changed is read again.
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
from outbound_transfer.client.errors import AlreadyDelivered, InvalidState, NotFound, WrongTransfer
from outbound_transfer.client.models import Transfer, identity_of
from outbound_transfer.client.new_transfer import NewTransfer
from outbound_transfer.delivery.attempt import Attempt
from outbound_transfer.delivery.check import FindSources, changed_files, check_sent, is_comparable, is_of, reused_id
from outbound_transfer.delivery.decision import UNSENT, Act, Known, Phase, Refuse, Seen, decide
from outbound_transfer.delivery.draft import Filling
from outbound_transfer.delivery.row import Memory, Row, digest, hash_of, matches
from outbound_transfer.delivery.sending import DraftOutdated, Sending
from outbound_transfer.delivery.shown import show
from outbound_transfer.files.sources import Source
from outbound_transfer.wording import pluralize

log = logging.getLogger(__name__)


@dataclass
class Order:
    """What a task is asked to deliver.

    :ivar find_sources: finds the files; takes a list for the errors of those that are gone if they are only compared
        with what was sent. By default, other tasks attach them.
    :ivar is_outdated: called right before each attempt at the send: whether to make another draft.
    :ivar sends: whether this task sends the draft that it has filled, and leaves it to no other.
    :ivar chosen: digests of those addresses of another transfer; see :class:`.RedeliverFilesOperator`.
    """

    new: NewTransfer
    find_sources: FindSources = tuple
    is_outdated: Callable[[], bool] = bool
    sends: bool = True
    chosen: Sequence[str] = ()

    def digests(self, salt: str) -> dict[str, str]:
        """Return a short digest of each argument that a draft is made from; none of phones and the answer."""
        # Each recipient gets an email of their own: the order, perhaps that of a set or a query, has no meaning.
        recipients = sorted([one.email, one.name] for one in self.new.recipients)
        plain: dict[str, Any] = {**msgspec.structs.asdict(self.new), "recipients": recipients}
        del plain["security_answer"]  # it could be guessed, as a phone
        return {name: hash_of(salt, value)[:16] for name, value in plain.items()}


class Delivery:
    """One attempt of a delivery, whose row it has claimed.

    :ivar transfer: the draft or the sent transfer, as the service showed it last; None before it is known.
    """

    def __init__(self, client: Client, row: Row, attempt: Attempt) -> None:
        self.client, self.row, self.attempt = client, row, attempt
        self.transfer: Transfer | None = None
        self._sources: Sequence[Source] = ()

    @property
    def memory(self) -> Memory:
        """What the row remembers, as this attempt knows it."""
        return self.row.memory

    @property
    def may_have_sent(self) -> bool:
        """Whether an earlier attempt may have sent something."""
        return self.memory.phase in (Phase.SENDING, Phase.DISCARDING)

    def known(self) -> Transfer:
        """Return the draft or the sent transfer, which was read or created before."""
        assert self.transfer is not None
        return self.transfer

    def deliver(self, order: Order, max_parallel: int, on_draft: Callable[[], object] = lambda: None) -> Transfer:
        """Create, fill and send a draft, or return the transfer that was sent; or the draft if another task sends it.

        :param on_draft: called once the draft or the sent transfer is known.
        :raises AlreadyDelivered: something else was sent, or may have been.
        :raises DraftOutdated: ``order.is_outdated`` says so; the draft was deleted.
        """
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
            return self.known()
        except DraftOutdated:
            if self.settle(seen=Seen.DRAFT) is not Act.RETURN:
                raise
            return self.known()

    def prepare(self, order: Order) -> Act:
        """Make a draft, or find what became of an earlier one: ``CREATE``, ``RESUME`` or ``RETURN``.

        :raises AlreadyDelivered: something else was sent, or may have been.
        """
        before, now = self.memory.input, order.digests(self.memory.salt)
        differences = ", ".join(sorted(name for name in before if before[name] != now.get(name)))
        act = self.settle(differences, has_filled=bool(self.attempt.claim))
        if act is Act.CREATE:
            self._create(order)
        return act

    def settle(self, differences: str = "", *, has_filled: bool = False, seen: Seen = Seen.NOTHING_YET) -> Act:
        """Read, decide and act by :mod:`.decision`, until nothing is left that may be sent, or it is to be used.

        :param differences: between the input of now and that of the draft.
        :raises AlreadyDelivered: something was sent, or may have been, and must not be sent again.
        """
        while True:
            act = decide(Known(self.memory.phase, seen, bool(differences), has_filled))
            match act:
                case Act.READ:
                    seen = self.look()
                    continue
                case Act.FORGET:
                    log.warning("Transfer %s of an earlier attempt is given up", self.memory.transfer_id)
                    self.row.save(Memory.emptied)
                case Act.DISCARD:
                    self._delete()
                case Refuse():
                    raise self._refusal(act, differences)
                case _:
                    return act
            seen = Seen.NOTHING_YET

    def look(self) -> Seen:
        """Read the row's transfer, and store that it was sent."""
        memory, settings = self.memory, self.client.settings
        if memory.account != settings.account:
            return Seen.ELSEWHERE
        transfer = self.client.find_transfer(memory.transfer_id)
        if transfer is None or not is_of(memory, transfer):
            return Seen.GONE if matches(memory.key_check, settings.transfer_api_key) else Seen.ELSEWHERE
        self.transfer = transfer
        if transfer.is_draft:
            return Seen.DRAFT
        self._show(transfer)
        if memory.phase is not Phase.SENDING:  # a late send of an earlier attempt
            self.row.save(phase=Phase.SENDING)
        return Seen.SENT

    def look_here(self) -> Seen:
        """Read the row's transfer as :meth:`look` does.

        :raises WrongTransfer: it may be there under another API key.
        """
        if (seen := self.look()) is Seen.ELSEWHERE:
            doubt = "" if self.memory.phase in UNSENT else "It may have been sent. "
            raise WrongTransfer(
                f"The service does not show transfer {self.memory.transfer_id}: it was removed, or the connection has "
                f"another user's API key. {doubt}Nothing is done with it. Correct the connection."
            )
        return seen

    def send(self, draft: Transfer | None = None, is_outdated: Callable[[], bool] = bool) -> Transfer:
        """Send the draft; see :class:`.Sending`."""
        self.transfer = transfer = Sending(self, draft, is_outdated).send()
        self._show(transfer)
        log.info("Sent transfer %s: %s, expires %s", transfer.id, transfer.status, transfer.expires_at)
        return transfer

    def discard(self) -> bool:
        """Delete the draft; return False if it was sent.

        :raises AlreadyDelivered: it may have been sent, and the service does not show it any more.
        :raises WrongTransfer: it may be there under another API key; or another transfer has its id.
        """
        seen = self.look_here()
        if seen is Seen.GONE and self.client.find_transfer(self.memory.transfer_id):
            raise reused_id(self.memory.transfer_id)
        return self.settle(seen=seen) is not Act.RETURN

    @contextmanager
    def closing(self, is_final: Callable[[BaseException], bool], open_client: Callable[[], Client]) -> Iterator[None]:
        """Delete the draft if an error or a skip ends the block before the send, and no later attempt is to come.

        :param is_final: whether none is.
        :param open_client: returns a client whose calls give up soon and do not defer.
        """
        try:
            yield
        except BaseException as error:
            try:
                if is_final(error) and self.memory.phase in UNSENT:
                    with open_client() as self.client:
                        self.settle()
            except Exception as failure:
                log.warning("Draft '%s' of this task stays at the service: %s", self.memory.transfer_id, failure)
            raise

    def _create(self, order: Order) -> None:
        self._sources = order.find_sources()  # a missing file must leave no draft behind
        client, salt = self.client, secrets.token_hex(8)
        self.transfer = transfer = client.create_transfer(order.new)
        self.row.save(
            phase=Phase.DRAFT,
            transfer_id=transfer.id,
            account=client.settings.account,
            key_check=digest(client.settings.transfer_api_key),
            salt=salt,
            input=order.digests(salt),
            identity=digest(identity_of(transfer)),
            item=hash_of(self.attempt.by.task[:2], identity_of(transfer)),
            asked=self.attempt.asked,
            security=order.new.security or "",
            is_rehearsal=client.settings.rehearses,
            chosen=order.chosen,
        )
        self._show(transfer)
        log.info("Created draft %s for %s", transfer.id, pluralize(len(order.new.recipients), "recipient"))

    def _delete(self) -> None:
        """Delete what this attempt has read as a draft, or has made."""
        transfer_id = self.row.save(phase=Phase.DISCARDING).transfer_id
        try:
            with suppress(NotFound):
                self.client.discard_transfer(transfer_id)
        except InvalidState:
            self.row.save(phase=Phase.SENDING)
        else:
            self.row.save(Memory.emptied)
            log.info("Discarded draft %s", transfer_id)

    def _show(self, transfer: Transfer) -> None:
        show(self.attempt.conn_id, lambda: self.client.settings.account, {transfer.id: transfer}, self.row.rows)

    def _check_returned(self, order: Order) -> None:
        """Check that a transfer is what was meant to be sent; after a clear, that its files are still those to deliver.

        :raises WrongTransfer, AlreadyDelivered: it is not; they are not.
        """
        memory, transfer = self.memory, self.known()
        check_sent(memory, transfer)
        # Another task that takes over a delivery key asks again, as a clear does, and a run that is made again.
        asks_again = is_comparable(memory, memory.entries.values()) and memory.asked != self.attempt.asked
        if asks_again and (changes := changed_files(memory.held, order.find_sources)):
            raise self._refusal(Refuse.OTHER_INPUT, changes)
        log.info("Transfer %s (%s) was sent by an earlier attempt", transfer.id, transfer.status)

    def _refusal(self, reason: Refuse, differences: str) -> AlreadyDelivered:
        key = self.row.delivery_key
        return AlreadyDelivered(
            reason.value.format(
                subject=f"Delivery key {key!r}" if key else "This run",
                id=self.memory.transfer_id,
                differences=differences,
                then=self.memory.account,
                now=self.client.settings.account,
                another=f"trigger a new DAG run{' with another delivery_key' if key else ''}",
            )
        )
