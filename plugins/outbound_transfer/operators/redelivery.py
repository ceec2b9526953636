"""Deliver a transfer's files again, to those who have not picked it up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

from outbound_transfer.airflow_compat.names import AirflowSkipException
from outbound_transfer.client.errors import AlreadyDelivered, InvalidDelivery
from outbound_transfer.client.models import CANCELED, decode_pickups, to_builtins
from outbound_transfer.client.new_transfer import NewRecipient, build_new_transfer, normalize_address
from outbound_transfer.delivery.attempt import find_state, task_of
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.operators.arguments import (
    DELIVERY_CHECKS,
    MORE_FILES_CHECKS,
    TRANSFER_CHECKS,
    TRANSFER_ID_CHECK,
    resolve_transfer_id,
)
from outbound_transfer.operators.base import DEFAULT_CONN_ID, DEFAULT_DEFERRABLE, FILES_FIELDS, TRANSFER_FIELDS
from outbound_transfer.operators.recipients import RecipientsFromSql, load_recipients, mask_phones, unmask
from outbound_transfer.operators.transfer import DeliverFilesOperator, delivery_arguments

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.delivery import Delivery, Order
    from outbound_transfer.delivery.row import Memory
    from outbound_transfer.delivery.sent import FindSources
    from outbound_transfer.files.attached import Held
    from outbound_transfer.files.content import Spool
    from outbound_transfer.files.find import FileSpec
    from outbound_transfer.files.sources import Source
    from outbound_transfer.operators.arguments import Files, Recipients, TransferId
    from outbound_transfer.operators.task_arguments import TaskArguments

SUBJECT_PREFIX: Final = "Once more: "  # begins the subject of a second delivery that is not given one


class RedeliverFilesOperator(DeliverFilesOperator):
    """Deliver a sent transfer's files again, to the recipients who have not picked it up.

    Skips the task if all of them have. Right before each attempt to send, the pickups are read again: if somebody has
    picked up since, a new draft goes to the others. Once the task has left somebody out in a run, no retry or clear
    delivers to them. See :class:`.DeliverFilesOperator` for the other arguments.

    :param transfer_id: the first transfer: its id, or the result of its task.
    :param files: the first transfer's files: their names and sizes must match, and any digests that are still stored.
    :param security: required, even as None for the account's default: the service does not return the first transfer's
        option, and the default may be weaker.
    :param subject: by default "Once more: " and the first transfer's subject.
    :param message: by default the first transfer's message.
    :param recipients: the first transfer's recipients, to add phone numbers, which the service does not return.
    :return: the second transfer, as :class:`.DeliverFilesOperator` returns it.
    """

    template_fields: Sequence[str] = (*DeliverFilesOperator.template_fields, "transfer_id")
    checks = (TRANSFER_ID_CHECK, *DeliverFilesOperator.checks)
    found_later = frozenset({"subject", "recipients"})

    _others: Sequence[str] = ()  # ids of other transfers of the same files
    _siblings: Sequence[str] = ()  # keys of the rows of the tasks that may have sent them
    _picked_up: Set[str] = frozenset()  # normalized addresses of the recipients who have picked up

    def __init__(
        self,
        *,
        transfer_id: TransferId,
        files: Files,
        security: str | None,
        subject: str | None = None,
        message: str | None = None,
        recipients: Recipients | None = None,
        security_question: str | None = None,
        security_answer: str | None = None,
        archive: str | None = None,
        checksums: str | None = None,
        on_empty: str = "fail",
        max_parallel_uploads: int = 4,
        delivery_key: str | None = None,
        send: bool = True,
        slot_timeout: timedelta = timedelta(hours=1),
        wait: bool = False,
        poke_interval: timedelta = timedelta(minutes=1),
        timeout: timedelta | None = None,
        on_expired: str = "fail",
        on_canceled: str = "fail",
        accept_partial: bool = False,
        outbound_transfer_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = DEFAULT_DEFERRABLE,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        self.transfer_id: Any = transfer_id
        super().__init__(**delivery_arguments(locals()), **kwargs)

    def deliver(self, delivery: Delivery, context: Context, spool: Spool) -> Transfer:
        from outbound_transfer.delivery.draft import DraftOutdated

        given = self.recipients, self.subject, self.message
        while True:  # each time, somebody else has picked up
            try:
                return super().deliver(delivery, context, spool)
            except DraftOutdated:
                self.recipients, self.subject, self.message = given

    def order(self, delivery: Delivery, spool: Spool) -> Order:
        """Decide to whom to deliver, and take missing arguments from the first transfer."""
        from outbound_transfer.delivery.row import find_row

        client = delivery.client
        self.transfer_id = resolve_transfer_id(self.transfer_id)
        row = find_row(delivery.row.rows, client.settings.account, self.transfer_id)
        sent = row.read()[1].held if row else {}
        first = self._read_first(client)
        chosen = self._choose(delivery, first)
        load_recipients(self, delivery)
        self.recipients = mask_phones(_only(chosen, first, unmask(self.recipients)))
        self.subject = self.subject or f"{SUBJECT_PREFIX}{first.subject}"
        self.message = first.message if self.message is None else self.message
        order = super().order(delivery, spool)
        order.find_sources = partial(_find_same, order.find_sources, first)
        order.is_outdated = lambda: self._is_outdated(delivery, sent, chosen.keys())
        order.chosen, order.siblings = [*chosen.values()], [*self._siblings, *([row.key] if row else [])]
        return order

    def _read_first(self, client: Client) -> Transfer:
        """Read the first transfer, and note who has picked up its files from it or from another transfer."""
        first = client.get_transfer(self.transfer_id, decode_pickups)
        others = (client.find_transfer(each, decode_pickups) for each in self._others)
        for each in filter(None, (first, *others)):
            self._picked_up |= frozenset(map(normalize_address, each.picked_up))
        return first

    def _choose(self, delivery: Delivery, first: Transfer) -> dict[str, str]:
        """Map the chosen addresses to digests: those that an earlier attempt may have sent to, or else those left.

        :raises AirflowSkipException: nobody is left.
        """
        from outbound_transfer.delivery.row import hash_of

        memory = delivery.memory
        addresses = sorted({normalize_address(recipient.email) for recipient in first.recipients})
        digests = {address: hash_of(first.id, address)[:16] for address in addresses}
        before = {address: digest for address, digest in digests.items() if digest in memory.chosen}
        if delivery.may_have_sent:
            if not before:
                raise AlreadyDelivered(
                    f"Transfer {memory.transfer_id}, which was or may have been sent, is not the second delivery of "
                    f"transfer {first.id}. Nothing is sent. To deliver the latter again, trigger a new Dag run."
                )
            return before
        if first.is_draft:
            raise InvalidDelivery(f"Transfer {first.id} was never sent, so it cannot be delivered again")
        if first.status == CANCELED:
            raise InvalidDelivery(f"Transfer {first.id} was canceled, so it is not delivered again")
        left = {each: digest for each, digest in (before or digests).items() if each not in self._picked_up}
        if not left:
            raise AirflowSkipException(f"Everybody has picked up transfer {first.id}: nothing is delivered again")
        return left

    def _is_outdated(self, delivery: Delivery, sent: Mapping[str, Held], chosen: Iterable[str]) -> bool:
        """Return whether one of the draft's recipients must no longer get it; check the contents of its files."""
        held = delivery.memory.held
        if different := sorted(name for name in held.keys() & sent if held[name].sha256 != sent[name].sha256):
            raise InvalidDelivery(
                f"{', '.join(map(repr, different[:5]))}: same size, but different content than in transfer "
                f"{self.transfer_id}. Nothing is sent. Deliver it with another task"
            )
        first = self._read_first(delivery.client)
        return first.status == CANCELED or not self._picked_up.isdisjoint(chosen)


class _Reminder(RedeliverFilesOperator):
    """Delivers again what another task of its run delivered; see :func:`remind_recipients`."""

    custom_operator_name = "remind_recipients"
    skips_without_files = False
    found_later = frozenset({"transfer_id", "files", *TRANSFER_FIELDS})
    checks = (*TRANSFER_CHECKS, *MORE_FILES_CHECKS, *DELIVERY_CHECKS)  # query results are not files yet

    delivering: DeliverFilesOperator  # the task that delivered, perhaps another reminder
    origin: str  # the id of the first task that delivered the same files
    taken_over: Sequence[str] = ("recipients",)  # arguments to take from that task if they are not given
    _source: DeliverFilesOperator  # that task as this attempt renders it, for its files and recipients

    def prepare(self, delivery: Delivery, context: Context) -> None:
        self.transfer_id = self._find_sent_transfer(delivery, context)
        self._source = source = self.delivering.prepare_for_execution()
        source.render_template_fields(context)
        try:
            source.prepare(delivery, context)
        except AirflowSkipException as skip:  # a function found nothing this time
            self._choose(delivery, self._read_first(delivery.client))  # which skips if nobody is left
            raise self._missing(skip) from skip
        if isinstance(source, RedeliverFilesOperator):
            self._others = [*self._others, *source._others, resolve_transfer_id(source.transfer_id)]
        for name in (*FILES_FIELDS, *(each for each in self.taken_over if getattr(self, each) is None)):
            setattr(self, name, getattr(source, name))
        if isinstance(self.recipients, RecipientsFromSql):
            self.recipients.on_empty = "fail"
        delivery.client.secrets.update(self.secrets())

    def find_sources(
        self, spool: Spool, gone: list[OutboundTransferError] | None, results: Sequence[FileSpec] = ()
    ) -> list[Source]:
        try:
            return self._source.find_sources(spool, gone, results)
        except AirflowSkipException as skip:
            raise self._missing(skip) from skip

    def _missing(self, skip: AirflowSkipException) -> InvalidDelivery:
        return InvalidDelivery(f"The files of transfer {self.transfer_id} are missing: {skip}")

    def _find_sent_transfer(self, delivery: Delivery, context: Context) -> str:
        """Return the id of the transfer that the task sent, whatever the task's state is now."""
        from outbound_transfer.delivery.row import Row, read_memory

        rows, task_id, (dag_id, run_id, _, index) = delivery.row.rows, self.delivering.task_id, delivery.attempt.by.task

        def remembered_by(task_id: str) -> Memory:
            return read_memory(rows, (dag_id, run_id, task_id, index))

        memory = remembered_by(task_id)
        first = delivery.client.find_transfer(memory.transfer_id) if memory.transfer_id else None
        is_sent = first is not None and not first.is_draft
        if is_sent and task_of(memory.asked[0])[:2] == (dag_id, run_id):
            tasks = {each.task_id for each in self.dag.tasks if getattr(each, "origin", each.task_id) == self.origin}
            others = map(remembered_by, tasks - {self.task_id, task_id})
            self._siblings = [Row.of_task(rows, (dag_id, run_id, each, index)).key for each in tasks]
            self._others = [each.transfer_id for each in others if each.phase is Phase.SENDING]
            return memory.transfer_id
        state = find_state(context, dag_id, run_id, task_id, index)
        if state == "skipped":
            raise AirflowSkipException(f"Task '{task_id}' was skipped, so there is nothing to remind anybody of")
        if is_sent and state == "success":
            raise AirflowSkipException(
                f"Another run delivered transfer {memory.transfer_id} under the delivery_key of task '{task_id}', so "
                "this run reminds nobody"
            )
        raise InvalidDelivery(f"Task '{task_id}' has sent nothing (its state: {state}), so nobody is reminded")


def remind_recipients(delivery: Any, *, task_id: str = "remind_recipients", **arguments: Any) -> RedeliverFilesOperator:
    """Create a task that delivers a task's files again, to those who have not picked them up by then.

    It runs once all upstream tasks have finished, even if a sensor failed at its timeout: ``deliver >> wait >>
    remind_recipients(deliver)``. It skips if everybody has picked up, or if the other task was skipped, and fails if
    the other task delivered nothing.

    :param delivery: the task that delivers: a :class:`.DeliverFilesOperator`, a ``SqlToOutboundTransferOperator``, or
        the result of a function of ``@task.deliver_files``. The reminder uses its files or queries, recipients and
        options; the files must be those that were sent.
    :param arguments: arguments of :class:`RedeliverFilesOperator`, such as ``subject``, ``message`` or ``retries``.
    :raises InvalidDelivery: the other task does not deliver, or the two are not in the same mapped task group; or
        ``trigger_rule`` is given.
    """
    if (rule := arguments.setdefault("trigger_rule", "all_done")) != "all_done":
        raise InvalidDelivery(
            f"{task_id}: trigger_rule {str(rule)!r:.100} may silently skip the reminder, or run it before the "
            "delivery. Leave it out: a reminder runs when all upstream tasks have finished, and skips if nobody is left"
        )
    task = getattr(delivery, "operator", delivery)
    if not isinstance(task, DeliverFilesOperator):
        raise InvalidDelivery(
            f"{task_id}: {getattr(task, 'task_id', task)!r:.100} does not deliver, or it is mapped. Put a "
            "mapped delivery and its reminder in one mapped task group"
        )
    taken = ("security", "outbound_transfer_conn_id", "deferrable", "slot_timeout")
    own = {**dict.fromkeys((*TRANSFER_FIELDS, "delivery_key")), "send": True}  # not default_args, meant for others
    given = {**own, **{name: getattr(task, name) for name in taken}, **arguments}
    reminder = _Reminder(task_id=task_id, transfer_id="found later", files=None, **given)  # type: ignore[arg-type]
    if reminder.get_closest_mapped_task_group() is not task.get_closest_mapped_task_group():
        raise InvalidDelivery(f"{task_id}: this task and '{task.task_id}' must be in the same mapped task group")
    reminder.delivering, reminder.origin = task, getattr(task, "origin", task.task_id)
    if "security" not in arguments:  # all of them, or none
        reminder.taken_over = ("recipients", "security", "security_question", "security_answer")
    # In a mapped group, Airflow 3.1 finds the result of the same index only for direct upstream tasks.
    reminder.set_upstream([task, *task.upstream_list] if task.get_closest_mapped_task_group() else task)
    return reminder


def _find_same(find: FindSources, first: Transfer, gone: list[OutboundTransferError] | None = None) -> Sequence[Source]:
    """Find the files; raise InvalidDelivery if their names or sizes differ from the first transfer's."""
    sources = find(gone)
    wanted = {file.name: file.size for file in first.files or ()}
    found = {source.name: source.size for source in sources}
    different = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if different and gone is None:
        raise InvalidDelivery(
            f"The files are not those of transfer {first.id}, which is not delivered again. Missing, "
            f"additional or of a different size: {', '.join(map(repr, different[:5]))}"
        )
    return sources


def _only(addresses: Collection[str], first: Transfer, given: Any) -> list[dict[str, str]]:
    """Return the recipients at these normalized addresses, as they were given, or as the service returned them."""
    received = [NewRecipient(each.email, each.name) for each in first.recipients]
    listed = received if given is None else build_new_transfer(subject="later", recipients=given).recipients
    known = {normalize_address(each.email): each for each in listed}
    if missing := [address for address in addresses if address not in known]:
        raise InvalidDelivery(
            f"recipients lacks {', '.join(missing[:5])}, who received transfer {first.id} and did not pick it up"
        )
    return [to_builtins(known[address]) for address in addresses]
