"""What the ingestions share: the warehouse of a connection, its assets, and which errors a retry would not mend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, BaseHook
from airflow.sdk.exceptions import AirflowFailException

from outbound_transfer import failures

if TYPE_CHECKING:
    from outbound_transfer.protocol.feed import Page
    from outbound_transfer.warehouse.database import Warehouse

#: The alias under which every ingestion announces what it landed; an ``Asset`` is made of it only where rows came.
LANDED = AssetAlias("outbound_transfer_landed")


def table_asset(table: str, *, sql_conn_id: str, table_prefix: str = "outbound_transfer_") -> Asset:
    """The asset of a table: schedule a DAG on it to run when rows were landed.

    :param table: ``events``, ``transfers`` or ``recipients``.
    :param sql_conn_id: the warehouse's connection, as of the ingestion.
    :return: its events carry ``feed``, ``cursor_from``, ``cursor_to`` and ``types`` (of events).
    """
    name = f"{table_prefix}{table}"
    return Asset(name=f"{sql_conn_id}/{name}", uri=f"x-outbound-transfer://{sql_conn_id}/{name}")


def announce(context: Any, asset: Asset, extra: dict[str, Any]) -> None:
    """Emit an event of ``asset`` when the task succeeds."""
    if "outlet_events" in context:
        context["outlet_events"][LANDED].add(asset, extra=extra)


def warehouse_of(sql_conn_id: str, prefix: str, schema: str | None, *, patience: float | None = None) -> Warehouse:
    """The warehouse of a connection; ``patience`` as of :class:`.Warehouse`.

    :raises UnsupportedWarehouse: the connection leads to no SQL database.
    """
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    from outbound_transfer.warehouse.database import Warehouse
    from outbound_transfer.warehouse.errors import UnsupportedWarehouse

    hook = BaseHook.get_hook(sql_conn_id)
    if not isinstance(hook, DbApiHook):
        raise UnsupportedWarehouse(f"the connection {sql_conn_id} leads to no SQL database")
    return Warehouse(hook, prefix=prefix, schema=schema, patience=patience)


def show_page(feed: str, page: Page, new_events: int, now: float) -> None:
    """The metrics of a page that was landed; ``now`` is seconds since the epoch."""
    from outbound_transfer import metrics
    from outbound_transfer.protocol.models import instant_of

    metrics.ROWS_LANDED.emit(new_events, table="events")
    metrics.REJECTED_LINES.emit(len(page.rejected), feed=feed)
    newest = instant_of(page.events[-1].timestamp) if page.events and page.has_more else now
    if newest is not None:
        metrics.FEED_LAG.emit(max(now - newest, 0.0), feed=feed)


@contextmanager
def failing_at_once() -> Iterator[None]:
    """As for every operator; the warehouse's own refusals too, but neither a cursor that was moved nor a lock."""
    from outbound_transfer.warehouse.errors import CursorMoved, WarehouseBusy, WarehouseError

    try:
        with failures.failing_at_once():
            yield
    except (CursorMoved, WarehouseBusy):
        raise
    except WarehouseError as error:
        raise AirflowFailException(str(error)) from error
