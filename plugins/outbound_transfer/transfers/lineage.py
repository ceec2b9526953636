"""What an ingestion reads and writes, as OpenLineage's datasets. Imported only by what OpenLineage's provider calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.providers.openlineage.sqlparser import SQLParser
from airflow.sdk import BaseHook
from openlineage.client.event_v2 import Dataset

from outbound_transfer.assets import account_namespace
from outbound_transfer.hooks.outbound_transfer import settings_of


def lineage(source: str, tables: Sequence[str], operator: Any) -> OperatorLineage[Any, Any]:
    """The datasets of an ingestion, none of which says anything of a key.

    :param source: what of the account is read: ``events`` or ``transfers``.
    :param tables: those written, without their prefix.
    """
    settings = settings_of(BaseHook.get_connection(operator.outbound_transfer_conn_id))
    account = Dataset(namespace=account_namespace(settings.base_url), name=source)
    namespace, before = _place(operator.sql_conn_id, operator.schema)
    names = (".".join((*before, f"{operator.table_prefix}{table}")) for table in tables)
    return OperatorLineage(inputs=[account], outputs=[Dataset(namespace=namespace, name=name) for name in names])


def _place(sql_conn_id: str, schema: str | None) -> tuple[str, tuple[str, ...]]:
    """The namespace of a warehouse, and what stands before its tables' names."""
    hook: Any = BaseHook.get_hook(sql_conn_id)
    info = hook.get_openlineage_database_info(BaseHook.get_connection(sql_conn_id))
    if (
        info is None
    ):  # OpenLineage has no name for this database; a host may be a path, or hold what is nobody's business
        return f"{hook.dialect_name}://{sql_conn_id}", (schema,) if schema else ()
    parts = (info.database, schema or hook.get_openlineage_default_schema())
    return SQLParser.create_namespace(info), tuple(part for part in parts if part)
