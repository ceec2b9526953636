"""A local stand-in for the Outbound Transfer Service, as docs/service-api.md describes it.

The command ``outbound-transfer-sandbox`` runs it as a process; ``outbound_transfer_sandbox.testing.running_sandbox``
runs it inside a test. It shares no code with the provider, so that a mistake in one is not repeated by the other.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

_SERVER_PACKAGES: Final = ("httptools", "jinja2", "starlette", "uvicorn", "uvloop")


def explain_missing_packages() -> str | None:
    """Return how to install the packages of the server that are missing; None if there are all of them."""
    missing = [name for name in _SERVER_PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    return (
        f"The sandbox needs {', '.join(missing)}, which is not installed: "
        "pip install 'airflow-provider-outbound-transfer[sandbox]'"
    )
