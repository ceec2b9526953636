"""What a delivery reads and writes, as OpenLineage's datasets. Imported only by what OpenLineage's provider calls."""

from __future__ import annotations

import os
from typing import Any, Final

from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.sdk import BaseHook, ObjectStoragePath
from attrs import define
from openlineage.client.event_v2 import Dataset
from openlineage.client.facet_v2 import RunFacet

from outbound_transfer import state as states
from outbound_transfer.assets import account_namespace
from outbound_transfer.hooks.outbound_transfer import settings_of
from outbound_transfer.protocol.models import DRAFT
from outbound_transfer.state import DeliveryState

#: The facet's name in a run.
FACET: Final = "outboundTransfer"


@define
class OutboundTransferRunFacet(RunFacet):
    """The transfer of a run. Says nothing of its recipients, its message or its security.

    :ivar status: the service's, as the task returns it; else draft, and None where a send was begun and its end is not
        known.
    :ivar files: each with ``name`` and ``size`` (bytes); empty where the task attaches none.
    """

    transferId: str  # noqa: N815  # as OpenLineage names fields
    status: str | None
    files: list[dict[str, Any]]


def lineage(operator: Any, task_instance: Any) -> OperatorLineage[Any, Any]:
    """The datasets and the facet of a try that has ended, well or not; nothing where it came to no transfer."""
    state = states.load(task_instance.get_template_context()["task_state_store"], task_instance.try_number)
    if state is None or not state.transfer_id:
        return OperatorLineage()
    settings = settings_of(BaseHook.get_connection(operator.outbound_transfer_conn_id))
    return OperatorLineage(
        inputs=[dataset_of(file.location) for file in state.files.values() if file.location],
        outputs=[Dataset(namespace=account_namespace(settings.base_url), name="transfers")],
        run_facets={FACET: _facet(state, _returned(task_instance))},
    )


def dataset_of(location: str) -> Dataset:
    """A file by OpenLineage's naming: ``file`` and its path, or the bucket and the key."""
    if "://" not in location:
        return Dataset(namespace="file", name=os.path.abspath(location))  # noqa: PTH100  # links are not followed
    path = ObjectStoragePath(location)
    return Dataset(namespace=path.namespace, name=path.key or "/")


def _returned(task_instance: Any) -> Any:
    return task_instance.xcom_pull(
        dag_id=task_instance.dag_id, task_ids=task_instance.task_id, map_indexes=task_instance.map_index
    )


def _facet(state: DeliveryState, returned: Any) -> OutboundTransferRunFacet:
    files = [{"name": name, "size": file.size} for name, file in state.files.items()]
    if isinstance(returned, dict) and returned.get("id") == state.transfer_id:
        status = returned.get("status")
    else:
        status = None if state.sending else DRAFT
    return OutboundTransferRunFacet(transferId=state.transfer_id, status=status, files=files)
