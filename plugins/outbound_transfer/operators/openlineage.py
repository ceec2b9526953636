"""The datasets that deliveries and ingestions read and write, for OpenLineage's provider, which is optional."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

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
from outbound_transfer.delivery.row import read_memory
from outbound_transfer.hooks.connection import dataset_namespace


@define
class OutboundTransferRunFacet(RunFacet):
    """The transfer of a run, without its recipients, message and security; no status while its send is in doubt."""

    transferId: str  # noqa: N815  # as OpenLineage names fields
    status: str | None
    files: list[dict[str, Any]]


def delivery_lineage(operator: Any, ti: Any) -> OperatorLineage[Any, Any]:
    """Return the datasets and the facet of a finished attempt, successful or not; empty if it has no transfer."""
    memory = read_memory(open_rows(), TaskTry.of(ti.get_template_context()).task)
    returned = ti.xcom_pull(dag_id=ti.dag_id, task_ids=ti.task_id, map_indexes=ti.map_index)
    returned = returned if isinstance(returned, dict) else {}
    # A task that sends another task's draft has no row of its own.
    transfer_id = memory.transfer_id or returned.get("id", "")
    if not transfer_id:
        return OperatorLineage()
    if returned.get("id") == transfer_id:
        status = returned.get("status")
    else:
        status = None if memory.phase is Phase.SENDING else DRAFT
    files = [{"name": name, "size": held.size} for name, held in memory.held.items()]
    return OperatorLineage(
        inputs=[dataset_of(location) for location in operator.located],
        outputs=[Dataset(namespace=dataset_namespace(operator.outbound_transfer_conn_id), name="transfers")],
        run_facets={"outboundTransfer": OutboundTransferRunFacet(transferId=transfer_id, status=status, files=files)},
    )


def dataset_of(location: str) -> Dataset:
    """Return a file's dataset by OpenLineage's naming: ``file`` and its path, or the bucket and the key."""
    if "://" not in location:
        return Dataset(namespace="file", name=os.path.abspath(location))  # noqa: PTH100  # links are not followed
    path = ObjectStoragePath(location)
    return Dataset(namespace=path.namespace, name=path.key or "/")


def ingestion_lineage(source: str, tables: Sequence[str], operator: Any) -> OperatorLineage[Any, Any]:
    """Return the datasets of an ingestion of ``events`` or ``transfers``. Tables are given without their prefix."""
    hook: Any = BaseHook.get_hook(operator.sql_conn_id)
    if info := hook.get_openlineage_database_info(BaseHook.get_connection(operator.sql_conn_id)):
        namespace = SQLParser.create_namespace(info)
        before = [info.database, operator.schema or hook.get_openlineage_default_schema()]
    else:  # OpenLineage has no name for this database, whose host may be a path, or contain a secret
        namespace, before = f"{hook.dialect_name}://{operator.sql_conn_id}", [operator.schema]
    names = [".".join(filter(None, (*before, f"{operator.table_prefix}{table}"))) for table in tables]
    return loading_lineage(source, namespace, names, operator)


def loading_lineage(source: str, namespace: str, names: Sequence[str], operator: Any) -> OperatorLineage[Any, Any]:
    """Return the dataset of the account that is read, and those that are written; none of them contains a key."""
    account = Dataset(namespace=dataset_namespace(operator.outbound_transfer_conn_id), name=source)
    return OperatorLineage(inputs=[account], outputs=[Dataset(namespace=namespace, name=name) for name in names])


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset:  # noqa: ARG001  # Airflow passes it
    """Return the dataset of an asset; Airflow calls it for our scheme."""
    namespace, _, name = asset.uri.rpartition("/")
    return Dataset(namespace=namespace, name=name)
