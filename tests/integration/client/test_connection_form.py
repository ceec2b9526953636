"""The connection's form as Airflow asks the hook for it before 3.2."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook


def test_the_fields_are_those_of_the_providers_description(monkeypatch: pytest.MonkeyPatch) -> None:
    def field(kind: str) -> Any:
        return lambda label, **values: (kind, label, values)

    # What Airflow puts in place of WTForms, which need not be installed.
    kinds = ("BooleanField", "IntegerField", "PasswordField", "StringField")
    monkeypatch.setitem(sys.modules, "wtforms", SimpleNamespace(**{kind: field(kind) for kind in kinds}))
    fields = OutboundTransferHook.get_connection_form_widgets().items()
    found = {name: (kind, label, values["default"]) for name, (kind, label, values) in fields}
    assert found == {
        "event_api_key": ("PasswordField", "Event API key", None),
        "timeout": ("IntegerField", "Timeout (seconds)", 60),
        "verify": ("BooleanField", "Verify TLS", True),
        "web_url": ("StringField", "Web application", None),
        "rehearse": ("BooleanField", "Rehearse", False),
    }
    assert all(values["description"] for _, (_, _, values) in fields)
    behaviour = OutboundTransferHook.get_ui_field_behaviour()
    assert behaviour.keys() == {"hidden_fields", "relabeling", "placeholders"}
    assert behaviour["hidden_fields"] == ["schema", "login"]
    assert behaviour["relabeling"]["password"] == "Transfer API key"
