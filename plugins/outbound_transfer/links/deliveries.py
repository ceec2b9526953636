"""The link from a task instance to its deliveries on the page "Outbound transfers"."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class DeliveriesLink(BaseOperatorLink):
    """The deliveries of the task instance, for versions of Airflow in which a plugin cannot add a tab."""

    name = "Deliveries"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the page's address. It is relative, because Airflow may be served under a path."""
        names = {"dag_id": ti_key.dag_id, "run_id": ti_key.run_id, "task_id": ti_key.task_id}
        return f"outbound-transfer/task?{urlencode(names | {'map_index': ti_key.map_index})}"
