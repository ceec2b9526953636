"""What Airflow's lineage calls an account's transfers and events: ``outbound-transfer://account.example.com/transfers``.

One asset for all transfers of an account, and not one for each: which transfer a task made is the run's to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult

if TYPE_CHECKING:
    from airflow.sdk import Asset
    from openlineage.client.event_v2 import Dataset

SCHEME: Final = "outbound-transfer"


def account_namespace(base_url: str) -> str:
    """The namespace of an account's datasets."""
    from outbound_transfer.warehouse.progress import feed_name

    return f"{SCHEME}://{feed_name(base_url)}"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Airflow's check of an asset's address.

    :raises ValueError: it names no account, or nothing of it.
    """
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError(f"{SCHEME}:// is followed by an account's site address, and by transfers or events")
    return uri


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset:  # noqa: ARG001  # Airflow passes it
    """The dataset of such an asset."""
    from openlineage.client.event_v2 import Dataset

    namespace, _, name = asset.uri.rpartition("/")
    return Dataset(namespace=namespace, name=name)
