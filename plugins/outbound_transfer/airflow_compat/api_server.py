"""How Airflow's API server treats a browser."""

from __future__ import annotations

from typing import Final

from airflow.api_fastapi.core_api import security

#: Whether a link to a page carries the user's token. In 3.0 and 3.1.0, Airflow's UI keeps it in the browser's local
#: storage instead of a cookie.
HAS_COOKIE: Final = hasattr(security, "COOKIE_NAME_JWT_TOKEN")
