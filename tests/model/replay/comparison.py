"""What the model says of the end of a schedule, beside what has really happened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from model.replay.sample import Schedule
from model.replay.service import Service
from model.replay.tasks import Instance
from model.world import Slot
from outbound_transfer.delivery.decision import Reason


class Seen(NamedTuple):
    """What has really happened.

    :ivar ids: the real ids of the model's transfers, each with its connection.
    :ivar unknown: the ids of drafts of which the model knows nothing: who made them could not store them.
    """

    instances: Sequence[Instance]
    ids: Mapping[int, tuple[str, str]]
    unknown: Sequence[str]


def find_differences(service: Service, schedule: Schedule, seen: Seen) -> Iterator[str]:
    """Yield how the end of a schedule differs: of each task, of each transfer, and of what was billed."""
    for number, (slot, instance) in enumerate(zip(schedule.end.slots, seen.instances, strict=True)):
        is_same = instance.state == slot.state
        if instance.kind in ("attach", "send"):  # the model does not say which of their errors are final
            is_same |= {instance.state, slot.state} == {"failed", "refused"}
        if not is_same:
            yield f"task {number} is {slot.state}, and really {instance.state}: {instance.error!r}"
        elif difference := _differs(schedule, seen, number, slot):
            yield f"task {number} {difference}"
    yield from _differing_transfers(service, schedule, seen)


def _differs(schedule: Schedule, seen: Seen, number: int, slot: Slot) -> str:
    instance = seen.instances[number]
    if slot.state == "success" and instance.kind in ("deliver", "send"):
        meant, found = seen.ids[slot.result][0], instance.result["id"]
        return "" if found == meant else f"returns {slot.result} ({meant}), and really {found}"
    if slot.state == "refused" and instance.kind == "deliver":
        meant, found = _reason_in_model(schedule, number), _reason_of(instance.error)
        return "" if found == meant else f"is refused because of {meant}, and really of {found}: {instance.error}"
    return ""


def _differing_transfers(service: Service, schedule: Schedule, seen: Seen) -> Iterator[str]:
    sent = service.sent()
    for number, transfer in enumerate(schedule.end.transfers):
        transfer_id, connection = seen.ids[number]
        billed = sent.count(transfer_id)
        if billed != (transfer.status in ("sent", "hidden")):
            yield f"transfer {number} ({transfer_id}) is {transfer.status}, and was billed {billed} times"
        status = service.account(connection).status(transfer_id)
        if status != transfer.status.replace("hidden", "gone").replace("discarded", "gone"):
            yield f"transfer {number} ({transfer_id}) is {transfer.status}, and really {status}"
    for transfer_id in seen.unknown:
        if transfer_id in sent:
            yield f"transfer {transfer_id} was sent, of which the model knows nothing"


def _reason_in_model(schedule: Schedule, number: int) -> str:
    details = [step.event.detail for step in schedule.steps if step.event.who and step.event.who[0] == number]
    return next(each.rpartition("it refuses: ")[2] for each in reversed(details) if "it refuses: " in each)


def _reason_of(error: BaseException | None) -> str:
    """Return the name of the reason that an error gives."""
    for reason in Reason:
        if re.search(".*".join(map(re.escape, re.split(r"\{[\w!]+\}", reason.value))), str(error), re.DOTALL):
            return reason.name
    return "an error"
