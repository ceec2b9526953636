"""What a notification says of a transfer: read from a callback's context or the service, then put into plain words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from outbound_transfer.airflow_compat.names import redact
from outbound_transfer.client.models import DRAFT
from outbound_transfer.client.outcomes import TransferOutcome
from outbound_transfer.wording import clean, pluralize

#: How many addresses a notification names.
MAX_ADDRESSES: Final = 20

_MAX_REASON: Final = 500


@dataclass(frozen=True)
class TaskLocation:
    """The task that a notification is about. Each field is "" if it is not known."""

    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""

    @classmethod
    def from_context(cls, context: Mapping[str, Any], task_id: str | None) -> TaskLocation:
        """Return the task of a callback, or of a deadline alert, whose context has only the run.

        :param task_id: the task in the run, if it is not the context's own.
        """
        ti, run = context.get("ti"), context.get("dag_run")
        run = run if isinstance(run, Mapping) else {name: getattr(run, name, "") for name in ("dag_id", "run_id")}
        return cls(
            str(run.get("dag_id") or getattr(ti, "dag_id", "")),
            str(run.get("dag_run_id") or run.get("run_id") or getattr(ti, "run_id", "")),
            task_id or str(getattr(ti, "task_id", "")),
        )

    def __str__(self) -> str:
        return " / ".join(filter(None, [self.dag_id, self.run_id, self.task_id]))


@dataclass(frozen=True)
class TransferNotice:
    """A notification in plain text, of which each line may quote what others wrote: whoever shows it escapes it.

    :ivar title: one line.
    :ivar lines: the rest.
    :ivar url: the transfer in the web application; "" if there is no link.
    """

    title: str
    lines: tuple[str, ...]
    url: str = ""


def build_notice(
    outcome: TransferOutcome | None,
    location: TaskLocation,
    *,
    title: str | None = None,
    reason: str = "",
    url: str = "",
    has_failed: bool = False,
) -> TransferNotice:
    """Put an outcome into words.

    :param outcome: None if the task has no transfer.
    :param title: replaces the first words of the title.
    :param reason: replaces the outcome's.
    :param has_failed: whether an error ended the task.
    """
    lines = [f"Task: {clean(location, 500)}"] if str(location) else []
    if reason := reason or (outcome.reason if outcome else ""):
        lines.append(f"Reason: {clean(' '.join(str(redact(reason)).split()), _MAX_REASON)}")
    if outcome is None:
        return TransferNotice(
            clean(title or ("Failed without a transfer" if has_failed else "No transfer yet")), tuple(lines)
        )
    status = outcome.status if outcome.status is not None else "in a status that is not known"
    first = f"Transfer {clean(outcome.transfer_id)} is {clean(status)}; {_describe_outstanding(outcome)}"
    subject = f": {clean(outcome.subject, 150)}" if outcome.subject else ""
    return TransferNotice(f"{clean(title or _title_of(outcome))}{subject}", (first, *lines), url)


def _title_of(outcome: TransferOutcome) -> str:
    if outcome.status == DRAFT:
        return "Not sent"
    if outcome.not_picked_up is None or outcome.picked_up is None:
        return "Pickup not known"
    if not outcome.not_picked_up:
        return "Picked up by all"
    return f"Not picked up by {len(outcome.not_picked_up)} of {len(outcome.not_picked_up) + len(outcome.picked_up)}"


def _describe_outstanding(outcome: TransferOutcome) -> str:
    addresses = outcome.not_picked_up
    if addresses is None:
        return "who has picked up is not known"
    if not addresses:
        return "all recipients have picked up"
    more = f" and {len(addresses) - MAX_ADDRESSES} more" if len(addresses) > MAX_ADDRESSES else ""
    named = ", ".join(clean(address) for address in addresses[:MAX_ADDRESSES])
    return f"not picked up by {pluralize(len(addresses), 'recipient')}: {named}{more}"


def deadline_reason(context: Mapping[str, Any]) -> str:
    """Return why a deadline alert notifies; "" in another context."""
    deadline = context.get("deadline")
    at = deadline.get("deadline_time") if isinstance(deadline, Mapping) else None
    return f"The run has not finished by its deadline, {at}" if at else ""
