"""The connection's form for Airflow 3.1, which asks the hook; later versions read the provider's description."""

# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from typing import Any, Final

from outbound_transfer.get_provider_info import get_provider_info

TYPE: Final[dict[str, Any]] = get_provider_info()["connection-types"][0]


def form_widgets() -> dict[str, Any]:
    """Return a WTForms field for each of the ``conn-fields``."""
    # Airflow replaces these classes while it calls this, so they must not be imported earlier.
    from wtforms import BooleanField, IntegerField, PasswordField, StringField

    kinds = {"boolean": BooleanField, "integer": IntegerField, "password": PasswordField, "string": StringField}
    widgets = {}
    for name, field in TYPE["conn-fields"].items():
        schema = field["schema"]
        kind = schema.get("format") or (schema["type"] if isinstance(schema["type"], str) else schema["type"][0])
        widgets[name] = kinds[kind](field["label"], description=field["description"], default=schema.get("default"))
    return widgets
