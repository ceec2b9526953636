"""The base class of the provider's operators, and the steps that delivering tasks share, in order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator

from outbound_transfer.airflow_compat.names import AirflowSkipException, conf, timezone
from outbound_transfer.airflow_compat.rendering import hides_secrets, is_unmapped
from outbound_transfer.client.errors import InvalidDelivery, NothingMatches
from outbound_transfer.client.new_transfer import NewTransfer, build_new_transfer
from outbound_transfer.delivery.attempt import Attempt
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.links.transfer import TransferLink
from outbound_transfer.operators import recipients, results
from outbound_transfer.operators.arguments import Check, check_all, check_literals, to_seconds
from outbound_transfer.operators.errors import DeferRequested, Report, fail_without_retry
from outbound_transfer.wording import format_bytes

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from outbound_transfer.client.client import Client, RetryPolicy
    from outbound_transfer.client.errors import CallError, OutboundTransferError
    from outbound_transfer.delivery.delivery import Delivery
    from outbound_transfer.files.content import Spool
    from outbound_transfer.files.find import FileSpec
    from outbound_transfer.files.sources import Source

DEFAULT_CONN_ID: Final = OutboundTransferHook.default_conn_name
DEFAULT_DEFERRABLE: Final[bool] = conf.getboolean("operators", "default_deferrable", fallback=False)

#: Arguments that describe a new transfer; that select the files; whose templates may lack a value.
TRANSFER_FIELDS: Final = ("subject", "recipients", "message", "security", "security_question", "security_answer")
FILES_FIELDS: Final = ("files", "archive", "checksums", "on_empty", "max_parallel_uploads")
_OPTIONAL: Final = frozenset({*TRANSFER_FIELDS, "files", "checksums"})

NOTHING_MATCHES: Final = "No pattern in files matches a file"


@hides_secrets
class OutboundTransferOperator(BaseOperator):
    """An operator that talks to the service in ``run_task``, which may run again from its beginning.

    :param outbound_transfer_conn_id: the Airflow connection.
    :param deferrable: free the worker slot while waiting for pickup, for a slot or for the feed's next page.
    """

    template_fields: Sequence[str] = ("outbound_transfer_conn_id",)
    operator_extra_links: Collection[BaseOperatorLink] = (TransferLink(),)

    #: Checks of the arguments; subclasses run them when the Dag is parsed, and again when the task runs.
    checks: tuple[Check, ...] = ()
    found_later: Set[str] = frozenset()  # arguments that may be left out, or are replaced, when the task runs
    owns_delivery = True  # whether a failed attempt is a failed delivery
    sends = False  # whether errors name the transfer that was sent, or is in doubt
    slot_timeout: Any = None  # how long to wait for a slot of the account; None if the task sends nothing
    skips_without_files = False  # whether the task skips, before it creates anything, if there are no files
    located: Sequence[str] = ()  # paths and URIs of the files that this attempt has found

    report: Report  # what this process does, for its errors
    was_deferred = False
    _given: Mapping[str, Any] = {}  # the rendered arguments as they were before rendering
    _waited = 0.0  # seconds that this attempt has waited in deferred mode
    _claim = 0  # number of the claim on the delivery's row, from before the deferral

    def __init__(
        self, *, outbound_transfer_conn_id: str = DEFAULT_CONN_ID, deferrable: bool = DEFAULT_DEFERRABLE, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self.deferrable = deferrable

    def check_when_parsed(self) -> None:
        """Hide the secrets in a Dag file, and check the arguments that no template or other task changes."""
        if not is_unmapped(self):  # Airflow recognizes another task's result by its identity
            recipients.hide_fields(self, self.template_fields, recipients.mask_literals)
        check_literals(self, self.checks, self.found_later)

    def before_rendering(self, fields: Collection[str]) -> None:
        """Prepare the arguments in ``fields`` for rendering, in each attempt; none is another task's result."""
        recipients.hide_fields(self, fields, recipients.mask_literals)
        self._given = {name: getattr(self, name) for name in fields}

    def hide_secrets(self) -> None:
        """Mask the secrets in the rendered fields before Airflow stores them."""
        task: Any = self
        for name in self._given.keys() & _OPTIONAL:
            setattr(task, name, recipients.without_none(self._given[name], getattr(task, name)))
        if isinstance(self._given.get("security"), str) and task.security is None:
            task.security = ""  # which is refused: the account's default may be weaker than the intended option
        recipients.hide_fields(self, self.template_fields, recipients.mask)

    def secrets(self) -> set[str]:
        """Return the strings that a call's error must not quote."""
        return set(recipients.find_secrets([getattr(self, name, None) for name in ("security_answer", "recipients")]))

    @abstractmethod
    def run_task(self, hook: OutboundTransferHook, context: Context) -> Any:
        """Do the task's work, from the beginning in each process of an attempt."""

    def hook(self, **client_options: Any) -> OutboundTransferHook:
        """Return the connection's hook, with these arguments for :class:`.Client`."""
        return OutboundTransferHook(self.outbound_transfer_conn_id, secrets=self.secrets(), **client_options)

    def attempt(self, context: Context) -> Attempt:
        """Return this attempt as Airflow describes it."""
        return Attempt(context, self.outbound_transfer_conn_id, self._claim)

    def begin(self, client: Client, context: Context, delivery_key: str | None = None) -> Delivery:
        """Claim the delivery's row for this attempt, and return the delivery."""
        from outbound_transfer.delivery.delivery import begin_delivery
        from outbound_transfer.delivery.place import open_rows

        delivery = begin_delivery(client, open_rows(), self.attempt(context), delivery_key)
        self.report.row = delivery.row
        return delivery

    def execute(self, context: Context) -> Any:
        with self._reporting(context):
            return self._run(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        with self._reporting(context, is_sent=next_method == "__fail__"):  # the trigger failed, not a delivery
            return super().resume_execution(next_method, next_kwargs, context)

    def resume(self, context: Context, event: Any = None, *, waited: float = 0.0, claim: int = 0) -> Any:  # noqa: ARG002
        """Resume after a deferred wait, with :meth:`_resume_arguments`; ``dag.test()`` of Airflow 3.3 passes none."""
        self.was_deferred, self._waited, self._claim = True, waited, claim
        return self._run(context)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the files, the transfer and its status for OpenLineage's provider."""
        from outbound_transfer.operators.openlineage import delivery_lineage

        return delivery_lineage(self, task_instance)

    @contextmanager
    def _reporting(self, context: Context, *, is_sent: bool = False) -> Iterator[None]:
        self.report = Report(context, self.outbound_transfer_conn_id, self.log, sends=self.sends, is_sent=is_sent)
        with self.report.of_errors() if self.owns_delivery else nullcontext():
            yield

    def _run(self, context: Context) -> Any:
        try:
            with fail_without_retry(), self.hook(policy=self._retry_policy(), on_retry=self._on_retry) as hook:
                return self.run_task(hook, context)
        except DeferRequested as request:
            from airflow.providers.standard.triggers.temporal import DateTimeTrigger

            trigger = DateTimeTrigger(moment=timezone.utcnow() + timedelta(seconds=request.seconds))
            self.defer(trigger=trigger, method_name="resume", kwargs=self._resume_arguments(request))

    def _retry_policy(self) -> RetryPolicy:
        from outbound_transfer.client.client import RetryPolicy

        slots = 0.0 if self.slot_timeout is None else to_seconds("slot_timeout", self.slot_timeout)
        return RetryPolicy(slot_timeout=max(slots - self._waited, 0.0))

    def _resume_arguments(self, request: DeferRequested) -> dict[str, Any]:
        claim = self.report.row.claim_number if self.report.row else 0
        return {"waited": self._waited + request.seconds, "claim": claim}

    def _on_retry(self, operation: str, error: CallError, seconds: float) -> None:
        """Log a wait; defer a deferrable task that waits for a slot."""
        from outbound_transfer.client.client import log_retry

        log_retry(operation, error, seconds)
        if self.deferrable and error.waits_for_slot:
            raise DeferRequested(seconds)


def new_transfer(task: Any, delivery: Delivery) -> NewTransfer:
    """Find the recipients, check all arguments, and return the draft to create."""
    recipients.load_recipients(task, delivery)
    check_all(task, task.checks)
    return build_new_transfer(**{name: recipients.unmask(getattr(task, name)) for name in TRANSFER_FIELDS})


def find_files(task: Any, spool: Spool, gone: list[OutboundTransferError] | None = None) -> Sequence[Source]:
    """Find a task's files with its ``find_sources``, and pack them.

    :param gone: collects the errors about missing files, if files are only compared with what was sent.
    """
    from outbound_transfer.files.content import pack, with_checksums

    sources: Sequence[Source] = task.find_sources(spool, gone)
    task.log.info("Found %s to deliver", results.describe_files(sources))
    task.located = [source.location for source in sources if source.location]
    if not sources and gone is None and task.skips_without_files:
        raise AirflowSkipException(f"{NOTHING_MATCHES}: nothing is delivered")
    if gone or not sources:
        return sources
    if task.archive:
        packed = pack(task.archive, sources, spool)
        task.log.info("Packed %s into %s: %s", results.describe_files(sources), task.archive, format_bytes(packed.size))
        sources = [packed]
    return with_checksums(task.checksums, sources, spool) if task.checksums else sources


def find_sources(
    task: Any, spool: Spool, gone: list[OutboundTransferError] | None, results: Sequence[FileSpec] = ()
) -> list[Source]:
    """Find or create each file: the query ``results``, and the files and contents in the argument ``files``."""
    from outbound_transfer.files.find import parse_files, resolve_files

    missing: list[OutboundTransferError] = []
    sources = resolve_files([*parse_files(results), *parse_files(task.files)], spool, missing)
    if gone is not None:
        gone += missing
        return sources
    for error in missing:
        if task.on_empty != "skip" or not isinstance(error, NothingMatches):
            raise error
        task.log.info("Skipped: %s", error)
    return sources


@contextmanager
def no_skip_after_send(delivery: Delivery) -> Iterator[None]:
    """Turn a skip into an error if the transfer was, or may have been, sent."""
    try:
        yield
    except AirflowSkipException as skip:
        if delivery.may_have_sent:
            raise InvalidDelivery(
                "The task cannot be skipped: an earlier attempt sent, or may have sent, its delivery. The skip was: "
                f"{skip or 'AirflowSkipException'}"
            ) from skip
        raise
