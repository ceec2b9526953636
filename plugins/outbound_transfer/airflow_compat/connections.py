"""Make a connection readable from a thread beside the task's own."""

from __future__ import annotations

from typing import Any

import attrs
from airflow.sdk import Connection


def with_parsed_extra(connection: Connection) -> Connection:
    """Return a copy whose extra fields are parsed, and masked in logs, here and once.

    Airflow sends them to the supervisor to be masked whenever they are read. Before Airflow 3.2, a thread that does so
    may take the response that another one waits for. A server's own connection is returned as it is.
    """
    if not isinstance(connection, Connection):
        return connection
    extra = connection.extra_dejson
    parsed: Any = type("ParsedConnection", (Connection,), {"extra_dejson": property(lambda _: dict(extra))})
    copy: Connection = parsed(**attrs.asdict(connection, recurse=False))
    return copy
