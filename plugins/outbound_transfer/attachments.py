"""Which files a draft holds, which it should hold, and which must go: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from outbound_transfer.digests import sha256_of
from outbound_transfer.protocol.errors import FileConflict
from outbound_transfer.protocol.models import File
from outbound_transfer.state import PlannedFile

if TYPE_CHECKING:
    from outbound_transfer.sources import Source

Named = TypeVar("Named", "File", "Source")


def by_name(items: Iterable[Named] | None) -> dict[str, Named]:
    return {item.name: item for item in items or ()}


def plan_files(
    sources: Sequence[Source], held: Mapping[str, File], before: Mapping[str, PlannedFile]
) -> dict[str, PlannedFile]:
    """What will be attached; ``before`` is the plan of the earlier try."""
    return {source.name: _planned(source, held.get(source.name), before.get(source.name)) for source in sources}


def _planned(source: Source, file: File | None, old: PlannedFile | None) -> PlannedFile:
    location = source.location.encode(errors="replace").decode()  # Airflow stores valid Unicode alone
    planned = PlannedFile(source.size, source.version, file.id if file else "", location=location)
    if old is None:
        return planned
    planned.earlier_sizes = old.earlier_sizes
    if (old.size, old.version) != (source.size, source.version):
        planned.earlier_sizes = (*old.earlier_sizes, old.size)
    if file:  # what is still held is what was planned
        planned.sha256, planned.may_land = old.sha256, old.may_land
    return planned


def unwanted_uploads(
    planned: Mapping[str, PlannedFile], held: Mapping[str, File], wanted: Mapping[str, Source]
) -> list[str]:
    """Names that are not wanted any more and may come to be held all the same: no look at the draft rules it out."""
    dropped = {name: plan for name, plan in planned.items() if name not in wanted}
    return sorted(name for name, plan in dropped.items() if plan.may_land or name not in held)


def stale_files(
    planned: Mapping[str, PlannedFile], held: Mapping[str, File], sources: Mapping[str, Source], *, only_ours: bool
) -> list[File]:
    """The files on the draft that must go before it can hold just ``sources``.

    :raises FileConflict: one that this delivery did not put there is in the way.
    """
    stale = []
    for name, file in held.items():
        plan, source = planned.get(name), sources.get(name)
        if plan is None:
            if only_ours or source is not None:
                raise FileConflict(
                    f"The draft holds {name!r} ({file.size} bytes), which this delivery did not attach. "
                    "Remove it, or deliver in a draft of its own."
                )
        elif (
            source is None
            or (plan.size, plan.version) != (source.size, source.version)
            or not plan.is_attached_as(file)
        ):
            stale.append(file)
    return stale


def differences(planned: Mapping[str, PlannedFile], sources: Sequence[Source]) -> list[str]:
    """What is another file now than the one that was planned and sent, in words.

    The same bytes are the same file, whenever they were written: only what has another time of change is read.
    """
    now = by_name(sources)
    gone = [f"{name} is not among them any more" for name in planned if name not in now]
    return gone + [words for source in sources if (words := _difference(planned.get(source.name), source))]


def _difference(plan: PlannedFile | None, source: Source) -> str:
    if plan is None:
        return f"{source.name} was not among them"
    if plan.size != source.size:
        return f"{source.name} has {source.size} bytes and had {plan.size}"
    if plan.version != source.version and plan.sha256 != sha256_of(source):
        return f"{source.name} has other content"
    return ""
