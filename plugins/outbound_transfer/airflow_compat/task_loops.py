"""Task loops, which Airflow has from 3.4 on: iterations share a run, a task id and a map index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outbound_transfer.client.errors import InvalidDelivery

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskInLoop(InvalidDelivery):
    """The task is in a loop, whose iterations Airflow's task state store tells apart only until one is repeated.

    What to do: deliver in a mapped task behind the loop: ``deliver.expand(files=…)``. Not retried; nothing was created.
    """


def refuse_loop(context: Context) -> None:
    """Refuse a delivery in a loop: Airflow asks for the state of a task, and files what it stores, by the newest
    iteration or by a region that a clear renews, so that two iterations could be taken for one another.

    :raises TaskInLoop: nothing was created.
    """
    ti: Any = context["ti"]
    region = getattr(ti, "region_id", None)  # a mapped task has one, too
    is_in_region = region is not None and region.int != 0 and (ti.map_index is None or ti.map_index < 0)
    if "loop" in context or is_in_region or any(hasattr(group, "max_iterations") for group in _iter_groups(ti)):
        raise TaskInLoop(
            f"Task '{ti.task_id}' is in a loop, whose iterations could be taken for one another. Nothing was created. "
            "Deliver in a mapped task behind the loop: deliver.expand(files=<what the iterations return>)"
        )


def _iter_groups(ti: Any) -> Iterator[Any]:
    """Yield the task groups around a task, the innermost first."""
    group = getattr(ti.task, "task_group", None)
    while group is not None:
        yield group
        group = group.parent_group
