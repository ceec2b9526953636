"""A local stand-in for the Outbound Transfer Service, as docs/service-api.md describes it.

The command ``outbound-transfer-sandbox`` runs it as a process; ``outbound_transfer_sandbox.testing.running_sandbox``
runs it inside a test. It shares no code with the provider, so that a mistake in one is not repeated by the other.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

_PACKAGES: Final = ("email_validator", "httptools", "httpx", "jinja2", "msgspec", "starlette", "uvicorn", "uvloop")


def explain_missing_packages() -> str | None:
    """Return how to install the packages that are missing; None if none is."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    return (
        f"The sandbox needs packages that are not installed ({', '.join(missing)}): "
        "pip install 'airflow-provider-outbound-transfer[sandbox]'"
    )
