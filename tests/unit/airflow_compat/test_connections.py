"""Connections for a thread beside the task's own."""

from __future__ import annotations

import json

import pytest


def test_the_extra_fields_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import Connection

    from outbound_transfer.airflow_compat.connections import with_parsed_extra

    connection = Connection(
        conn_id="warehouse", conn_type="sqlite", host="h", port=5, password="p", extra=json.dumps({"a": 1})
    )
    parsed = with_parsed_extra(connection)
    connection.extra = parsed.extra = "no JSON any more"

    assert parsed.extra_dejson == {"a": 1}
    assert (parsed.conn_id, parsed.host, parsed.port, parsed.password) == ("warehouse", "h", 5, "p")
    parsed.extra_dejson["a"] = 2
    assert parsed.extra_dejson == {"a": 1}
    assert isinstance(parsed, Connection)
