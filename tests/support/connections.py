"""The sandbox as an Airflow connection."""

from __future__ import annotations

import json

from outbound_transfer_sandbox.testing import Sandbox


def connection_json(sandbox: Sandbox, **extra: object) -> str:
    """The sandbox as the value of an ``AIRFLOW_CONN_…`` variable."""
    return json.dumps(
        {
            "conn_type": "outbound_transfer",
            "host": sandbox.base_url,
            "password": sandbox.transfer_api_key,
            "extra": {"event_api_key": sandbox.event_api_key, **extra},
        }
    )
