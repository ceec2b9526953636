"""Open a warehouse with every connection of the environment, and print what becomes of it as JSON.

Run with the interpreter of an environment that has the providers of many databases; no hook may connect.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, NoReturn

from airflow.sdk import BaseHook

from outbound_transfer.store.tables import open_tables


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a hook connects")


def outcome_of(conn_id: str) -> list[str]:
    hook = BaseHook.get_hook(conn_id)
    try:
        open_tables(conn_id, prefix="outbound_transfer_", schema=None)
    except Exception as error:
        return [type(hook).__name__, type(error).__name__, str(error)]
    return [type(hook).__name__, "", ""]


if __name__ == "__main__":
    socket.socket.connect = refuse  # type: ignore[method-assign]
    conn_ids = [name.removeprefix("AIRFLOW_CONN_").lower() for name in os.environ if name.startswith("AIRFLOW_CONN_")]
    print(json.dumps({conn_id: outcome_of(conn_id) for conn_id in conn_ids}))
