"""Task loops, which Airflow has from 3.4 on: iterations share a run, a task id and a map index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.taskgroup import MappedTaskGroup

from outbound_transfer.protocol.errors import InvalidDelivery

if TYPE_CHECKING:
    from airflow.sdk import Context


class UnreadableLoop(InvalidDelivery):
    """Airflow does not state which iteration of a loop the task is in; nothing was created."""


def read_loop_index(context: Context) -> str:
    """Return the iteration of the loop that the running task is in, "" outside a loop: a part of its identity.

    It is not the region, by which Airflow tells its rows apart: a clear that repeats iterations gives them a new one.

    :raises UnreadableLoop: Airflow does not state the iteration, or states only one of several.
    """
    ti = context["ti"]
    groups = list(_iter_groups(ti))
    at = next((at for at, group in enumerate(groups) if _is_loop(group)), None)
    if "loop" not in context and at is None and not _is_unmapped_in_region(ti):
        return ""
    if at is not None and any(_is_loop(group) or isinstance(group, MappedTaskGroup) for group in groups[at + 1 :]):
        raise _unreadable(ti, "the loop is in another loop or in a mapped task group")
    index = getattr(context.get("loop"), "index", None)
    if not isinstance(index, int) or index < 0:
        raise _unreadable(ti, "Airflow does not state the iteration")
    return str(index)


def find_terminal_state(context: Context) -> str | None:
    """Return the state in which Airflow takes the running task instance of a loop for finished; None if it does not.

    It is for loops: of their tasks, ``get_task_states`` returns the state in the newest iteration, whichever one asks.
    """
    ti: Any = context["ti"]
    own = (ti.task_id, str(ti.region_id), ti.region_index)
    for one in ti.get_task_breadcrumbs(dag_id=ti.dag_id, run_id=ti.run_id):
        # A task instance outside all regions has none.
        if (one["task_id"], str(one.get("region_id")), one.get("region_index")) == own:
            return str(one["state"])
    return None


def _iter_groups(ti: Any) -> Iterator[Any]:
    """Yield the task groups around a task, the innermost first."""
    group = getattr(ti.task, "task_group", None)
    while group is not None:
        yield group
        group = group.parent_group


def _is_loop(group: Any) -> bool:
    return hasattr(group, "max_iterations")


def _is_unmapped_in_region(ti: Any) -> bool:
    """Return whether the task instance is one of several, but not of a mapped task."""
    region = getattr(ti, "region_id", None)
    return region is not None and region.int != 0 and (ti.map_index is None or ti.map_index < 0)


def _unreadable(ti: Any, reason: str) -> UnreadableLoop:
    return UnreadableLoop(
        f"Task '{ti.task_id}' is in a loop, and {reason}: its iterations could be taken for one another. Nothing was "
        "created. Give it a delivery_key that differs in each iteration"
    )
