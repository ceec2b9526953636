"""Assets: an account's transfers and events in Airflow's lineage, and the warehouse tables that DAGs are scheduled on.

``outbound-transfer://account.example.com/transfers`` is one asset for all transfers of an account. Which transfer a
task made is shown by the run.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import SplitResult, quote

from airflow.sdk import Asset, AssetAlias

SCHEME: Final = "outbound-transfer"


def account_namespace(account: str) -> str:
    """Return the namespace of an account's datasets."""
    return f"{SCHEME}://{account}"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Validate an asset's address; Airflow calls it for our scheme.

    :raises ValueError: the account or the path is missing.
    """
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError(f"an asset's URI must be {SCHEME}://<site address of the account>/<transfers or events>")
    return uri


#: The alias under which every ingestion emits its asset events; an asset is created from it only if rows were loaded.
LOADED_ALIAS = AssetAlias("outbound_transfer_loaded")


def table_asset(table: str, *, sql_conn_id: str, table_prefix: str = "outbound_transfer_") -> Asset:
    """Return the asset of a table: schedule a DAG on it to run when rows were loaded.

    :param table: ``events``, ``transfers`` or ``recipients``.
    :param sql_conn_id: the warehouse's connection, the same as the ingestion's.
    :return: its events have ``account``, ``cursor_from``, ``cursor_to`` and ``types`` (of events) in ``extra``.
    """
    return _loaded_asset(sql_conn_id, f"{table_prefix}{table}")


def iceberg_asset(table: str, *, iceberg_conn_id: str) -> Asset:
    """Return the asset of an Iceberg table of events: schedule a DAG on it to run when events were loaded.

    :param table: namespace and table, as the ingestion has it.
    :param iceberg_conn_id: the catalog's connection, the same as the ingestion's.
    :return: its events have the same ``extra`` as those of :func:`table_asset`.
    """
    return _loaded_asset(iceberg_conn_id, quote(table, safe=""))


def _loaded_asset(conn_id: str, name: str) -> Asset:
    return Asset(name=f"{conn_id}/{name}", uri=f"x-outbound-transfer://{conn_id}/{name}")


def days_asset(asset: Asset) -> Asset:
    """Return the asset whose partitions are the UTC days of an asset, such as ``2026-11-22``.

    Its events come from :class:`~outbound_transfer.transfers.loaded_days.LoadedDaysOperator`.
    """
    return Asset(name=f"{asset.name}/days", uri=f"{asset.uri}/days")


def emit_asset_event(context: Any, asset: Asset, extra: dict[str, Any]) -> None:
    """Emit an event of ``asset`` when the task succeeds."""
    if "outlet_events" in context:
        context["outlet_events"][LOADED_ALIAS].add(asset, extra=extra)
