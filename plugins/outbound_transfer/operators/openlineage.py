"""The datasets that deliveries and ingestions read and write, for OpenLineage.

Imported only by functions that OpenLineage's provider calls, as it is optional.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.providers.openlineage.sqlparser import SQLParser
from airflow.sdk import Asset, ObjectStoragePath
from attrs import define
from openlineage.client.event_v2 import Dataset
from openlineage.client.facet_v2 import RunFacet

from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.client.models import DRAFT
from outbound_transfer.delivery.attempt import TaskTry
from outbound_transfer.delivery.decision import Phase
from outbound_transfer.delivery.place import open_rows
from outbound_transfer.delivery.row import Memory, read_memory
from outbound_transfer.hooks.connection import dataset_namespace

#: The facet's name in a run.
FACET: Final = "outboundTransfer"


@define
class OutboundTransferRunFacet(RunFacet):
    """The transfer of a run, without its recipients, message and security.

    :ivar status: the service's, as the task returns it; else draft, or None if a send was started and is in doubt.
    :ivar files: each with ``name`` and ``size`` (bytes); empty if the task attaches none.
    """

    transferId: str  # noqa: N815  # as OpenLineage names fields
    status: str | None
    files: list[dict[str, Any]]


def delivery_lineage(operator: Any, task_instance: Any) -> OperatorLineage[Any, Any]:
    """Return the datasets and the facet of a finished try, successful or not; empty if it has no transfer."""
    by = TaskTry.of(task_instance.get_template_context())
    memory, returned = read_memory(open_rows(), by.task), _returned(task_instance)
    facet = _facet(memory, returned if isinstance(returned, dict) else {})
    if not facet.transferId:
        return OperatorLineage()
    return OperatorLineage(
        inputs=[dataset_of(location) for location in getattr(operator, "located", ())],
        outputs=[Dataset(namespace=dataset_namespace(operator.outbound_transfer_conn_id), name="transfers")],
        run_facets={FACET: facet},
    )


def dataset_of(location: str) -> Dataset:
    """Return a file by OpenLineage's naming: ``file`` and its path, or the bucket and the key."""
    if "://" not in location:
        return Dataset(namespace="file", name=os.path.abspath(location))  # noqa: PTH100  # links are not followed
    path = ObjectStoragePath(location)
    return Dataset(namespace=path.namespace, name=path.key or "/")


def _returned(task_instance: Any) -> Any:
    return task_instance.xcom_pull(
        dag_id=task_instance.dag_id, task_ids=task_instance.task_id, map_indexes=task_instance.map_index
    )


def _facet(memory: Memory, returned: dict[str, Any]) -> OutboundTransferRunFacet:
    if not memory.transfer_id:  # a task that sends a draft of another remembers nothing
        return OutboundTransferRunFacet(transferId=returned.get("id", ""), status=returned.get("status"), files=[])
    files = [{"name": name, "size": held.size} for name, held in memory.held.items()]
    if returned.get("id") == memory.transfer_id:
        status = returned.get("status")
    else:
        status = None if memory.phase is Phase.SENDING else DRAFT
    return OutboundTransferRunFacet(transferId=memory.transfer_id, status=status, files=files)


def ingestion_lineage(source: str, tables: Sequence[str], operator: Any) -> OperatorLineage[Any, Any]:
    """Return the datasets of an ingestion; none of them contains a key.

    :param source: the dataset of the account that is read: ``events`` or ``transfers``.
    :param tables: the tables written, without their prefix.
    """
    namespace, before = _table_namespace(operator.sql_conn_id, operator.schema)
    names = [".".join((*before, f"{operator.table_prefix}{table}")) for table in tables]
    return loading_lineage(source, namespace, names, operator)


def loading_lineage(source: str, namespace: str, names: Sequence[str], operator: Any) -> OperatorLineage[Any, Any]:
    """Return the dataset of the account that is read, and those that are written; none of them contains a key."""
    account = Dataset(namespace=dataset_namespace(operator.outbound_transfer_conn_id), name=source)
    return OperatorLineage(inputs=[account], outputs=[Dataset(namespace=namespace, name=name) for name in names])


def _table_namespace(sql_conn_id: str, schema: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the namespace of a warehouse, and the parts that qualify its tables' names."""
    hook: Any = BaseHook.get_hook(sql_conn_id)
    info = hook.get_openlineage_database_info(BaseHook.get_connection(sql_conn_id))
    if info is None:
        # OpenLineage has no name for this database. Its host may be a path, or contain a secret, so it is not used.
        return f"{hook.dialect_name}://{sql_conn_id}", (schema,) if schema else ()
    parts = (info.database, schema or hook.get_openlineage_default_schema())
    return SQLParser.create_namespace(info), tuple(part for part in parts if part)


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset:  # noqa: ARG001  # Airflow passes it
    """Return the dataset of an asset; Airflow calls it for our scheme."""
    namespace, _, name = asset.uri.rpartition("/")
    return Dataset(namespace=namespace, name=name)
