"""Deliver the files of a transfer again, to those who have not picked it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat.names import AirflowSkipException
from outbound_transfer.client.errors import AlreadyDelivered, InvalidDelivery
from outbound_transfer.client.models import CANCELED
from outbound_transfer.client.new_transfer import (
    as_recipient_list,
    duplicate_addresses,
    normalize_address,
    show_address,
)
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.operators.arguments import TRANSFER_ID_CHECK, resolve_transfer_id
from outbound_transfer.operators.base import DEFAULT_CONN_ID, DEFAULT_DEFERRABLE
from outbound_transfer.operators.errors import fail_without_retry_on_warehouse_errors
from outbound_transfer.operators.files import FILES_FIELDS, MORE_FILES_CHECKS
from outbound_transfer.operators.masking import mask_phones, parse_text, unmask
from outbound_transfer.operators.new_transfer import TRANSFER_CHECKS, TRANSFER_FIELDS, secrets_of
from outbound_transfer.operators.transfer import DELIVERY_CHECKS, DeliverFilesOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.client import Client
    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.delivery import Delivery, Order
    from outbound_transfer.files.attached import Held
    from outbound_transfer.files.content import Spool
    from outbound_transfer.files.find import ParsedSpec
    from outbound_transfer.files.sources import Source
    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.operators.arguments import Files, Recipients, TransferId

#: Begins the subject of a second delivery that is given none.
SUBJECT_PREFIX: Final = "Once more: "

#: Arguments that belong together: a reminder takes all of them from the task that has delivered, or none.
_SECURITY: Final = ("security", "security_question", "security_answer")


class RedeliverFilesOperator(DeliverFilesOperator):
    """Deliver the files of a sent transfer again, to those of its recipients who have not picked it up.

    Skips the task if everybody has. Otherwise it is a delivery like any other: who has not picked up is read again
    right before each attempt at the send; if somebody has since, another draft is made, to those who are left. Whom the
    task has once left out in a run, no retry and no clear delivers to. See :class:`.DeliverFilesOperator` for the other
    arguments.

    :param transfer_id: the first transfer: its id, or a mapping with its id, such as the result of its task.
    :param files: must have the names and sizes of the first transfer's files, which the service does not return, and
        their bytes, if this Airflow has delivered it.
    :param security: see :class:`.DeliverFilesOperator`. To be given, if only as None for the account's default: the
        service does not return the option of the first transfer, and the default may be weaker.
    :param subject: by default "Once more: " and the first transfer's.
    :param message: by default the first transfer's.
    :param recipients: those of the first transfer, if the service lacks something about them: it returns no phones.
        Only those who have not picked up are delivered to.
    :return: the second transfer, as :class:`.DeliverFilesOperator` returns it.
    """

    template_fields: Sequence[str] = (*DeliverFilesOperator.template_fields, "transfer_id")
    checks = (TRANSFER_ID_CHECK, *DeliverFilesOperator.checks)
    found_later = frozenset({"subject", "recipients"})

    _first: Transfer
    #: The files of the first transfer, by name, if this Airflow has delivered it.
    _sent: Mapping[str, Held] = {}
    #: Ids of other transfers of the same files.
    _others: Sequence[str] = ()

    #: Normalized addresses: to whom this try delivers, with digests of them, and who it has seen to have picked up.
    _addresses: Set[str] = frozenset()
    _chosen: Sequence[str] = ()
    _picked_up: Set[str] = frozenset()

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
        **kwargs: Any,
    ) -> None:
        self.transfer_id: Any = transfer_id
        super().__init__(
            files=files,
            subject=subject,  # type: ignore[arg-type]  # found later
            recipients=recipients,  # type: ignore[arg-type]
            message=message,
            security=security,
            security_question=security_question,
            security_answer=security_answer,
            archive=archive,
            checksums=checksums,
            on_empty=on_empty,
            max_parallel_uploads=max_parallel_uploads,
            delivery_key=delivery_key,
            send=send,
            slot_timeout=slot_timeout,
            wait=wait,
            poke_interval=poke_interval,
            timeout=timeout,
            on_expired=on_expired,
            on_canceled=on_canceled,
            accept_partial=accept_partial,
            outbound_transfer_conn_id=outbound_transfer_conn_id,
            deferrable=deferrable,
            **kwargs,
        )

    def begin(self, client: Client, context: Context) -> Delivery:
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import find_row

        self.transfer_id = resolve_transfer_id(self.transfer_id)
        row = find_row(open_rows(), client.settings.account, self.transfer_id)  # made in the connection's account
        self._sent = row.read()[1].held if row else {}
        return super().begin(client, context)

    def load_recipients(self, delivery: Delivery) -> None:
        """Decide to whom to deliver, and take from the first transfer what is not given.

        :raises AirflowSkipException: everybody has.
        :raises InvalidDelivery: the first transfer cannot be delivered again.
        """
        from outbound_transfer.delivery.check import require_file_list

        self._client = delivery.client
        self._first = first = self._read_first()
        require_file_list(first)
        addresses = self._select(delivery, first)
        self._addresses = frozenset(addresses)
        super().load_recipients(delivery)
        self.recipients = mask_phones(_only(addresses, first, unmask(self.recipients)))
        self.subject = self.subject or f"{SUBJECT_PREFIX}{first.subject}"
        self.message = first.message if self.message is None else self.message

    def _read_first(self) -> Transfer:
        """Read the first transfer, and note who has picked up that, or another one of the same files."""
        first = self._client.get_pickups(self.transfer_id)
        for each in (first, *map(self._client.find_transfer, self._others)):
            self._picked_up |= _normalized(each.picked_up if each else ())
        return first

    def deliver(self, delivery: Delivery, context: Context, spool: Spool) -> Transfer:
        from outbound_transfer.delivery.sending import DraftOutdated

        given = self.recipients, self.subject, self.message
        while True:  # each time, somebody else has picked up
            try:
                return super().deliver(delivery, context, spool)
            except DraftOutdated:
                self.recipients, self.subject, self.message = given

    def order(self, delivery: Delivery, spool: Spool) -> Order:
        order = super().order(delivery, spool)
        order.is_outdated, order.chosen = self._is_outdated, self._chosen
        return order

    def _is_outdated(self) -> bool:
        """Return whether one of the draft's recipients must no longer get it.

        :raises InvalidDelivery: its files have other bytes than those that were sent.
        """
        attached, sent = self._delivery.memory.held, self._sent
        if different := sorted(name for name in attached.keys() & sent if attached[name].sha256 != sent[name].sha256):
            raise InvalidDelivery(
                f"{', '.join(map(repr, different[:5]))}: other content than was sent with transfer {self.transfer_id}, "
                "of the same size. Nothing is sent. Deliver it with another task"
            )
        first = self._read_first()
        return first.status == CANCELED or bool(self._addresses & self._picked_up)

    def check_sources(self, sources: Sequence[Source]) -> None:
        wanted = {file.name: file.size for file in self._first.files or ()}
        found = {source.name: source.size for source in sources}
        if different := sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name)):
            raise InvalidDelivery(
                f"The files are not those of transfer {self._first.id}, which is not delivered again. Missing, "
                f"additional or of another size: {', '.join(map(repr, different[:5]))}"
            )

    def _select(self, delivery: Delivery, first: Transfer) -> list[str]:
        """Return to whom to deliver, normalized: whom an earlier attempt may have sent to, otherwise who is left."""
        from outbound_transfer.delivery.row import hash_of

        addresses = sorted(_normalized(recipient.email for recipient in first.recipients))
        digests = {address: hash_of(first.id, address)[:16] for address in addresses}
        memory = delivery.memory
        before = [address for address in addresses if digests[address] in memory.chosen]
        if delivery.may_have_sent:
            if not before:
                raise AlreadyDelivered(
                    f"Transfer {memory.transfer_id} was sent, or may have been, and is not the second delivery of "
                    f"transfer {first.id}. Nothing is sent. To deliver that again, trigger a new DAG run."
                )
            self._chosen = memory.chosen
            return before
        if first.is_draft:
            raise InvalidDelivery(f"Transfer {first.id} was never sent, so it cannot be delivered again")
        if first.status == CANCELED:
            raise InvalidDelivery(f"Transfer {first.id} was canceled, so it is not delivered again")
        left = [address for address in before or addresses if address not in self._picked_up]
        if not left:
            raise AirflowSkipException(f"Everybody has picked up transfer {first.id}: nothing is delivered again")
        self._chosen = [digests[address] for address in left]
        return left


class _Reminder(RedeliverFilesOperator):
    """Delivers again what a task of its run has delivered; see :func:`remind_recipients`."""

    custom_operator_name = "remind_recipients"
    found_later = frozenset({"transfer_id", "files", *TRANSFER_FIELDS})
    checks = (*TRANSFER_CHECKS, *MORE_FILES_CHECKS, *DELIVERY_CHECKS)  # results of queries are no files yet

    #: The task that has delivered; and it as this try renders it, for its files and recipients.
    delivering: DeliverFilesOperator
    _source: DeliverFilesOperator

    #: Arguments that it takes from that task, where it is given nothing else.
    taken_over: Sequence[str] = ("recipients",)

    def run_task(self, hook: OutboundTransferHook, context: Context) -> dict[str, Any]:
        with fail_without_retry_on_warehouse_errors():
            return super().run_task(hook, context)

    def begin(self, client: Client, context: Context) -> Delivery:
        self.transfer_id = self._find_sent_transfer(client, context)
        return super().begin(client, context)

    def prepare(self, delivery: Delivery, context: Context) -> None:
        self._source = source = self.delivering.prepare_for_execution()
        source.render_template_fields(context)
        source.prepare(delivery, context)
        for name in FILES_FIELDS:
            setattr(self, name, getattr(source, name))
        for name in self.taken_over:
            if getattr(self, name) is None:
                setattr(self, name, getattr(source, name))
        delivery.client.secrets.update(secrets_of(self))

    def file_specs(self) -> list[ParsedSpec]:
        return self._source.file_specs()

    def find_sources(
        self, specs: Sequence[ParsedSpec], spool: Spool, gone: list[OutboundTransferError] | None
    ) -> list[Source]:
        try:
            return self._source.find_sources(specs, spool, gone)
        except AirflowSkipException as skip:
            raise InvalidDelivery(f"The files of transfer {self.transfer_id} are not there any more: {skip}") from skip

    def _related(self) -> list[str]:
        """Return the ids of all other tasks of the Dag that deliver the same: the first one, and its reminders."""
        origin = _origin_of(self)
        tasks = [task.task_id for task in self.dag.tasks if isinstance(task, _Reminder) and _origin_of(task) == origin]
        return [task_id for task_id in (origin, *tasks) if task_id not in (self.task_id, self.delivering.task_id)]

    def _find_sent_transfer(self, client: Client, context: Context) -> str:
        """Return the id of the transfer that the task has sent, whatever has become of the task since.

        :raises AirflowSkipException: it was skipped before its send; or its delivery key was delivered by another run.
        :raises InvalidDelivery: it has sent nothing.
        """
        from outbound_transfer.delivery.attempt import find_state, task_of
        from outbound_transfer.delivery.place import open_rows
        from outbound_transfer.delivery.row import read_memory

        ti, task_id, rows = context["ti"], self.delivering.task_id, open_rows()
        index = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else -1
        memory = read_memory(rows, (ti.dag_id, ti.run_id, task_id, index))
        first = client.find_transfer(memory.transfer_id) if memory.transfer_id else None
        if first and not first.is_draft:
            if task_of(memory.asked[0])[:2] != (ti.dag_id, ti.run_id):
                raise AirflowSkipException(
                    f"Another run delivered transfer {first.id} under the delivery_key of task '{task_id}': this run "
                    "reminds nobody"
                )
            others = [read_memory(rows, (ti.dag_id, ti.run_id, each, index)) for each in self._related()]
            self._others = [each.transfer_id for each in others if each.phase is Phase.SENDING]
            return first.id
        state = find_state(context, ti.dag_id, ti.run_id, task_id, index)
        if state == "skipped":
            raise AirflowSkipException(f"Task '{task_id}' was skipped: there is nothing to remind of")
        raise InvalidDelivery(f"Task '{task_id}' has sent nothing (its state: {state}), so nobody is reminded")


def _origin_of(task: DeliverFilesOperator) -> str:
    """Return the id of the task whose delivery a reminder, or a reminder of a reminder, is about."""
    return _origin_of(task.delivering) if isinstance(task, _Reminder) else task.task_id


def remind_recipients(delivery: Any, *, task_id: str = "remind_recipients", **arguments: Any) -> RedeliverFilesOperator:
    """Make a task that delivers again what another task delivers, to those who have not picked it up by then.

    It runs when all tasks upstream have finished, however they have: after a sensor that failed at its timeout, too. It
    is skipped if everybody has picked up, or if the other task was skipped; it fails if that has delivered nothing.
    Put it after what it is to wait for: ``deliver >> wait >> remind_recipients(deliver)``.

    :param delivery: the task that delivers: a :class:`.DeliverFilesOperator`, a ``SqlToOutboundTransferOperator``, or
        the result of a function of ``@task.deliver_files``. The reminder takes its files or queries, recipients and
        options; the files must have the names and sizes of those that were sent and, unless the task that delivered
        was killed, the bytes.
    :param arguments: of :class:`RedeliverFilesOperator`, such as ``subject``, ``message`` or ``retries``.
    :raises InvalidDelivery: the other task delivers nothing, or is mapped otherwise than this one; or it is given a
        trigger rule, by which Airflow may skip it.
    """
    if (rule := arguments.setdefault("trigger_rule", "all_done")) != "all_done":
        raise InvalidDelivery(
            f"{task_id}: trigger_rule {str(rule)!r:.100} may skip the reminder without a word, or run it before the "
            f"delivery. Leave it out: a reminder runs when all before it has finished, and skips if nobody is left"
        )
    task = getattr(delivery, "operator", delivery)
    if not isinstance(task, DeliverFilesOperator):
        raise InvalidDelivery(
            f"{task_id}: {getattr(task, 'task_id', task)!r:.100} is no task that delivers, or it is mapped. The "
            "reminder of a mapped delivery belongs in a mapped task group with it"
        )
    if refused := sorted({"files", "transfer_id"} & arguments.keys()):
        raise InvalidDelivery(f"{task_id}: {' and '.join(refused)} cannot be given: they are those of the delivery")
    taken = ("security", "outbound_transfer_conn_id", "deferrable", "slot_timeout")
    given = {name: getattr(task, name) for name in taken} | arguments
    reminder = _Reminder(task_id=task_id, transfer_id="found later", files=None, **given)  # type: ignore[arg-type]
    if reminder.get_closest_mapped_task_group() is not task.get_closest_mapped_task_group():
        raise InvalidDelivery(f"{task_id}: it and '{task.task_id}' must be in the same mapped task group")
    reminder.delivering = task
    if "security" not in arguments:
        reminder.taken_over = ("recipients", *_SECURITY)
    # In a mapped group, Airflow 3.1 finds the result of the same index of direct upstreams alone.
    reminder.set_upstream([task, *task.upstream_list] if task.get_closest_mapped_task_group() else task)
    return reminder


def _normalized(addresses: Iterable[str]) -> frozenset[str]:
    return frozenset(map(normalize_address, addresses))


def _only(addresses: list[str], first: Transfer, recipients: Any) -> list[Any]:
    """Return the recipients at these normalized addresses, as they were given, or as the service returned them.

    :raises InvalidDelivery: one of them is not among those that were given, or one that was given is there twice.
    """
    known = {normalize_address(each.email): each for each in first.recipients}
    if recipients is None:
        return [{"email": known[address].email, "name": known[address].name} for address in addresses]
    listed = as_recipient_list(parse_text(recipients))
    if repeated := duplicate_addresses(map(_address_of, listed)):
        raise InvalidDelivery(f"recipients has {', '.join(map(show_address, repeated[:5]))} more than once")
    given = {normalize_address(_address_of(each)): each for each in listed}
    if missing := [known[address].email for address in addresses if address not in given]:
        raise InvalidDelivery(
            f"recipients lacks {', '.join(missing[:5])}, who received transfer {first.id} and did not pick it up"
        )
    return [given[address] for address in addresses]


def _address_of(recipient: Any) -> str:
    recipient = parse_text(recipient)
    return str(recipient.get("email") if isinstance(recipient, Mapping) else recipient)
