"""Decide which files a draft should hold, and which must be removed: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from outbound_transfer.delivery.checksum import sha256_of
from outbound_transfer.delivery.state import PlannedFile
from outbound_transfer.protocol.errors import FileConflict
from outbound_transfer.protocol.models import File

if TYPE_CHECKING:
    from outbound_transfer.delivery.sources import Source

HasName = TypeVar("HasName", "File", "Source")


def by_name(items: Iterable[HasName] | None) -> dict[str, HasName]:
    """Return the items by their name; {} for None."""
    return {item.name: item for item in items or ()}


def plan_files(
    sources: Sequence[Source], attached: Mapping[str, File], before: Mapping[str, PlannedFile]
) -> dict[str, PlannedFile]:
    """Plan what will be attached.

    :param attached: the files that the draft holds, by name.
    :param before: the plan of the earlier try.
    """
    return {source.name: _plan_file(source, attached.get(source.name), before.get(source.name)) for source in sources}


def _plan_file(source: Source, file: File | None, old: PlannedFile | None) -> PlannedFile:
    location = source.location.encode(errors="replace").decode()  # Airflow stores only valid Unicode
    planned = PlannedFile(source.size, source.fingerprint, file.id if file else "", location=location)
    if old is None:
        return planned
    planned.earlier_sizes = old.earlier_sizes
    if (old.size, old.fingerprint) != (source.size, source.fingerprint):
        planned.earlier_sizes = (*old.earlier_sizes, old.size)
    if file:  # stale files were removed, so it is the planned one
        planned.sha256, planned.may_be_in_flight = old.sha256, old.may_be_in_flight
    return planned


def unwanted_uploads(planned: Mapping[str, PlannedFile], wanted: Mapping[str, Source]) -> list[str]:
    """Return the names that are no longer wanted and may still be attached: reading the draft cannot rule it out.

    An upload that is known to have finished is none, also if an earlier try has removed its file.
    """
    return sorted(name for name, plan in planned.items() if name not in wanted and plan.may_be_in_flight)


def reject_unknown_files(
    planned: Mapping[str, PlannedFile], attached: Mapping[str, File], wanted: Mapping[str, Source]
) -> None:
    """Check that the draft holds no file that a try whose record is missing may have attached.

    :raises FileConflict: it holds files that are neither planned by the known state nor wanted now.
    """
    if unknown := sorted(attached.keys() - planned.keys() - wanted.keys()):
        raise FileConflict(
            f"The draft holds {', '.join(map(repr, unknown))}, and the record of an earlier try of this task is "
            "missing: it may have attached these files. Remove them from the draft and clear the task; if another "
            "task attached them, deliver in a new run."
        )


def stale_files(
    planned: Mapping[str, PlannedFile], attached: Mapping[str, File], sources: Mapping[str, Source], *, exclusive: bool
) -> list[File]:
    """Return the files that must be removed before the draft can hold exactly ``sources``.

    :param exclusive: refuse every file that this delivery did not plan, and not only those in the way.
    :raises FileConflict: a file that this delivery did not attach is in the way.
    """
    stale = []
    for name, file in attached.items():
        plan, source = planned.get(name), sources.get(name)
        if plan is None:
            if exclusive or source is not None:
                raise FileConflict(
                    f"The draft holds {name!r} ({file.size} bytes), which this delivery did not attach. "
                    "Remove it, or deliver in a draft of its own."
                )
        elif (
            source is None
            or (plan.size, plan.fingerprint) != (source.size, source.fingerprint)
            or not plan.is_attached_as(file)
        ):
            stale.append(file)
    return stale


def describe_differences(planned: Mapping[str, PlannedFile], sources: Sequence[Source]) -> list[str]:
    """Describe how the files differ from those that were planned and sent.

    A file with the same bytes is the same file, whenever it was written: it is read only if its fingerprint changed.
    """
    now = by_name(sources)
    missing = [f"{name} is not among them any more" for name in planned if name not in now]
    return missing + [words for source in sources if (words := _describe_difference(planned.get(source.name), source))]


def _describe_difference(plan: PlannedFile | None, source: Source) -> str:
    if plan is None:
        return f"{source.name} was not among them"
    if plan.size != source.size:
        return f"{source.name} has {source.size} bytes and had {plan.size}"
    if plan.fingerprint != source.fingerprint and plan.sha256 != sha256_of(source):
        return f"{source.name} has other content"
    return ""
