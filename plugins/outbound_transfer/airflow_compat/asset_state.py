"""An asset's state store, read and written from the triggerer's event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from outbound_transfer.airflow_compat.lookups import call_airflow

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import AssetStateStoreAccessors


async def read(store: AssetStateStoreAccessors, key: str) -> Any:
    """Return the stored value, None if there is none.

    :raises ValueError: several assets share the trigger.
    """
    if hasattr(store, "aget"):
        return await store.aget(key)
    return await call_airflow(partial(store.get, key))  # before 3.3.2


async def write(store: AssetStateStoreAccessors, key: str, value: Any) -> None:
    """Store a value that JSON can represent."""
    if hasattr(store, "aset"):
        await store.aset(key, value)
    else:
        await call_airflow(partial(store.set, key, value))  # before 3.3.2
