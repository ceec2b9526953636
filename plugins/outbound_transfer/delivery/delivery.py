"""A delivery in one attempt of a task: claim the row, decide, act.

The order of the effects makes a crash at any point safe. Each line is stored before the next one starts:

1. This attempt has begun: :meth:`.Row.claim`. From then on, no earlier one can store anything, so none begins a send.
2. The draft's id: :meth:`Delivery.prepare`. A draft whose id nobody has stored is never sent.
3. Each file: its name before its upload, its record after it, and that all are attached: :meth:`.Filling.fill`.
4. A send begins: :meth:`.Sending.send`. Before each attempt, everything that may have changed is read again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outbound_transfer.client.errors import AlreadyDelivered
from outbound_transfer.client.models import Discarded, identity_of
from outbound_transfer.client.wording import pluralize
from outbound_transfer.delivery.check import check_sent
from outbound_transfer.delivery.decision import UNSENT, Act, Known, Phase, Refuse, Seen, decide
from outbound_transfer.delivery.digests import digest_with
from outbound_transfer.delivery.draft import Filling
from outbound_transfer.delivery.row import Memory, Row, digest_of_each, hash_of
from outbound_transfer.delivery.sending import Sending, delete_draft, look
from outbound_transfer.delivery.shown import show
from outbound_transfer.files.attached import describe_differences

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.attempt import Attempt
    from outbound_transfer.delivery.order import Order


class DraftOutdated(Exception):
    """Control flow, not an error: the draft was deleted, as what it was made from changed right before its send."""


class Delivery:
    """One attempt of a delivery, whose row it has claimed.

    :param delivery_key: "" if the task instance identifies the delivery.
    :param on_draft: called once the draft or the sent transfer that this attempt works on is known.
    :ivar transfer: the draft or the sent transfer, as the service showed it last; None before it is known.
    :ivar has_sent: whether this attempt has sent it.
    """

    def __init__(
        self,
        client: Client,
        row: Row,
        attempt: Attempt,
        log: Logger,
        *,
        delivery_key: str = "",
        on_draft: Callable[[Delivery], object] = lambda delivery: None,  # noqa: ARG005
    ) -> None:
        self.client, self.row, self.attempt, self.log = client, row, attempt, log
        self.delivery_key, self._on_draft = delivery_key, on_draft
        self.transfer: Transfer | None = None
        self.has_sent = False

    @property
    def memory(self) -> Memory:
        """What the row remembers, as this attempt knows it."""
        return self.row.memory

    @property
    def possibly_sent_id(self) -> str:
        """The id of what was sent, or may have been; "" if nothing was."""
        return self.memory.transfer_id if self.memory.phase is Phase.SENDING else ""

    @property
    def may_have_sent(self) -> bool:
        """Whether an earlier attempt may have sent something."""
        return self.memory.phase in (Phase.SENDING, Phase.DISCARDING)

    def deliver(self, order: Order, max_parallel: int) -> Transfer:
        """Create, fill and send a draft, or return the transfer that was sent.

        :raises AlreadyDelivered: something else was sent, or may have been.
        :raises DraftOutdated: ``order.is_outdated`` says so; there is no draft any more.
        """
        act = self.prepare(order)
        draft, fresh = self._known(), None
        if act is Act.RETURN:
            self._check_returned(order, draft)
            return draft
        if act is Act.CREATE:
            filling = Filling(self.client, self.row, draft.id, "", self.log)
            filling.fill(order.find(), {}, max_parallel)
            self.row.save(phase=Phase.HANDED_ON)
            fresh = _with_files(draft, filling)
        return self._send(order, fresh)

    def prepare(self, order: Order | None) -> Act:
        """Create a draft, or find that this attempt has filled one, or that it was sent: see :attr:`transfer`.

        :param order: None to leave nothing behind that can be sent.
        :raises AlreadyDelivered: what to deliver was sent, or may have been, and must not be sent again.
        """
        seen = Seen.NOTHING_YET
        while True:
            other = order is not None and bool(self._differences(order))
            act = decide(Known(self.memory.phase, seen, other, has_filled=bool(order and self.attempt.claim)))
            match act:
                case Act.READ:
                    seen = self._look()
                case Act.FORGET:
                    self.log.warning("Transfer %s of an earlier attempt is given up", self.memory.transfer_id)
                    self.row.save(Memory.emptied)
                    seen = Seen.NOTHING_YET
                case Act.DISCARD:
                    self._discard()
                    seen = Seen.NOTHING_YET
                case Act.CREATE:
                    if order:
                        self._create(order)
                    return act
                case Act.RESUME | Act.RETURN:
                    self._on_draft(self)
                    return act
                case _:
                    raise self._refusal(act, order)

    def withdraw(self) -> None:
        """Leave nothing behind that can be sent: the task delivers something else now.

        :raises AlreadyDelivered: something was sent, or may have been.
        """
        if self.prepare(None) is Act.RETURN:
            raise AlreadyDelivered(
                f"Transfer {self.memory.transfer_id} was sent under the delivery_key or in the account that this task "
                "had before. Nothing is sent. To deliver this, trigger a new DAG run."
            )

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
                    self.row.check_own()
                    with open_client() as self.client:
                        self.prepare(None)
            except Exception as failure:
                self.log.warning("Draft '%s' of this task stays at the service: %s", self.memory.transfer_id, failure)
            raise

    def _look(self) -> Seen:
        seen, transfer = look(self.client, self.memory)
        if transfer is None or seen not in (Seen.DRAFT, Seen.SENT):
            return seen
        self.transfer = transfer
        if seen is Seen.SENT:
            self._show(transfer)
            if self.memory.phase is not Phase.SENDING:  # a late send of an earlier attempt
                self.row.save(phase=Phase.SENDING)
        return seen

    def _create(self, order: Order) -> None:
        order.find()  # a missing file must leave no draft behind
        client, salt = self.client, secrets.token_hex(8)
        self.transfer = transfer = client.create_transfer(order.new)
        self.row.save(
            phase=Phase.DRAFT,
            transfer_id=transfer.id,
            account=client.settings.account,
            key_check=digest_with("key", salt, client.settings.transfer_api_key),
            salt=salt,
            input=digest_of_each(order.arguments(), salt),
            identity=digest_with(identity_of(transfer), salt),
            item=hash_of(self.attempt.run, identity_of(transfer)),
            asked=self.attempt.asked,
            security=order.new.security or "",
            is_rehearsal=client.settings.rehearses,
            chosen=order.chosen,
        )
        self._show(transfer)
        self.log.info("Created draft %s for %s", transfer.id, pluralize(len(order.new.recipients), "recipient"))
        self._on_draft(self)

    def _discard(self) -> Discarded:
        transfer_id = self.memory.transfer_id
        outcome = delete_draft(self.client, self.row)
        if outcome is not Discarded.SENT:
            self.log.info("Discarded draft %s", transfer_id)
        return outcome

    def _send(self, order: Order, fresh: Transfer | None) -> Transfer:
        def check() -> None:
            if order.is_outdated and order.is_outdated():
                raise DraftOutdated

        sending = Sending(self.client, self.row, self.attempt, draft=fresh, check=check)
        try:
            transfer = sending.send()
        except DraftOutdated:
            if self._discard() is not Discarded.SENT:
                raise
            transfer = self.client.get_transfer(self.memory.transfer_id)
        self.has_sent = sending.has_sent
        self.transfer = transfer
        self._show(transfer)
        self.log.info("Sent transfer %s: %s, expires %s", transfer.id, transfer.status, transfer.expires_at)
        return transfer

    def _show(self, transfer: Transfer) -> None:
        show(self.row.rows, self.client.settings.account, self.attempt.conn_id, transfer)

    def _known(self) -> Transfer:
        assert self.transfer is not None, "it was read or created"
        return self.transfer

    def _check_returned(self, order: Order, transfer: Transfer) -> None:
        """Check that a transfer is what was meant to be sent; after a clear, that its files are still those to deliver.

        :raises WrongTransfer, AlreadyDelivered: it is not; they are not.
        """
        memory = self.memory
        check_sent(memory, transfer)
        if memory.is_erased:
            self.log.warning(
                "Transfer %s was sent by an earlier attempt. What it was sent with was erased, and is not compared",
                transfer.id,
            )
            return
        if not memory.entries or memory.files() is None:
            raise AlreadyDelivered(
                f"Somebody else sent transfer {transfer.id} before this task had attached its files. Some may be "
                "missing. Nothing is sent. To deliver them, trigger a new DAG run."
            )
        # Another task that takes over a delivery key asks anew, as a clear does, and a run that is made again.
        if memory.asked != self.attempt.asked and (changes := self._changed_files(order)):
            raise self._refusal(Refuse.OTHER_INPUT, order, changes)
        self.log.info("Transfer %s (%s) was sent by an earlier attempt", transfer.id, transfer.status)

    def _changed_files(self, order: Order) -> str:
        """Describe how the files to deliver differ from those that were sent; "" if they do not, or are gone."""
        if order.find_sources is None:
            return ""
        gone: list[OutboundTransferError] = []
        sources, held = order.find_sources(gone), self.memory.held
        if gone:
            names = {source.name for source in sources}
            held = {name: each for name, each in held.items() if name in names}
        differences = describe_differences(held, sources)
        if gone and not differences:
            self.log.warning("Could not compare sent files with their sources, which are gone: %s", gone[0])
        return "; ".join([*differences[:5], *map(str, gone[:5])]) if differences else ""

    def _differences(self, order: Order) -> list[str]:
        """Return the arguments that differ from those that the draft was made from."""
        memory = self.memory
        if not memory.input:
            return []
        now = digest_of_each(order.arguments(), memory.salt)
        return sorted(name for name in {*now, *memory.input} if now.get(name) != memory.input.get(name))

    def _refusal(self, reason: Act | Refuse, order: Order | None, differences: str = "") -> AlreadyDelivered:
        key = self.delivery_key
        return AlreadyDelivered(
            str(reason.value).format(
                subject=f"Delivery key {key!r}" if key else "This run",
                id=self.memory.transfer_id,
                differences=differences or ", ".join(self._differences(order) if order else ()),
                then=self.memory.account,
                now=self.client.settings.account,
                another=f"trigger a new DAG run{' with another delivery_key' if key else ''}",
            )
        )


def _with_files(draft: Transfer, filling: Filling) -> Transfer:
    """Return a draft with the files that this attempt has just attached."""
    from msgspec.structs import replace

    return replace(draft, files=tuple(filling.records(list(filling.files))))
