"""Assets: an account's transfers and events in Airflow's lineage, and the warehouse tables that Dags are scheduled on.

``outbound-transfer://account.example.com/transfers`` is one asset for all transfers of an account.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import SplitResult, quote

from airflow.sdk import Asset, AssetAlias

SCHEME: Final = "outbound-transfer"

#: The alias under which every ingestion emits its asset events; an asset is created from it only if rows were loaded.
LOADED_ALIAS = AssetAlias("outbound_transfer_loaded")


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Refuse an asset's URI without an account or a path; Airflow calls it for our scheme."""
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError(f"an asset's URI must be {SCHEME}://<site address of the account>/<transfers or events>")
    return uri


def create_asset(*, account: str, name: str, extra: Any = None) -> Asset:
    """Return the asset of an account's transfers or events; Airflow's lineage calls it for our scheme.

    :param account: site address of the account, such as ``account.example.com``.
    :param name: ``transfers`` or ``events``.
    """
    return Asset(uri=f"{SCHEME}://{account}/{name}", extra=extra)


def table_asset(table: str, *, sql_conn_id: str, table_prefix: str = "outbound_transfer_") -> Asset:
    """Return a table's asset; a Dag that is scheduled on it runs when rows have been loaded.

    :param table: ``events``, ``transfers`` or ``recipients``.
    :param sql_conn_id: the warehouse's connection, the same as the ingestion's.
    :return: asset whose events have ``account``, ``cursor_from``, ``cursor_to`` and ``types`` (of events) in ``extra``.
    """
    name = f"{sql_conn_id}/{table_prefix}{table}"
    return Asset(name=name, uri=f"x-outbound-transfer://{name}")


def iceberg_asset(table: str, *, iceberg_conn_id: str) -> Asset:
    """Return the asset of an Iceberg table of events, as :func:`table_asset` does.

    :param table: namespace and table, as for the ingestion.
    """
    return table_asset(quote(table, safe=""), sql_conn_id=iceberg_conn_id, table_prefix="")


def days_asset(asset: Asset) -> Asset:
    """Return the asset whose partitions are an asset's UTC days; ``LoadedDaysOperator`` emits its events."""
    return Asset(name=f"{asset.name}/days", uri=f"{asset.uri}/days")


def emit_asset_event(context: Any, asset: Asset, extra: dict[str, Any]) -> None:
    """Emit an event of ``asset`` when the task succeeds."""
    if "outlet_events" in context:
        context["outlet_events"][LOADED_ALIAS].add(asset, extra=extra)
