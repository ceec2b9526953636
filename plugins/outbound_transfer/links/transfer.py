"""Links to transfers in the service's web application, including the link on a task instance's page."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.hooks.connection import settings_from_connection
from outbound_transfer.wording import is_valid_unicode

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from outbound_transfer.client.settings import Settings

log = logging.getLogger(__name__)

#: An http or https address whose host can be seen: no user, no placeholder, and nothing that browsers read differently.
_SAFE_URL: Final = re.compile(
    r"https?://(?:\[[0-9a-fA-F:.]+\]|(?:(?![/?#@{}\[\]\\:])[!-~])+)(?::[0-9]+)?(?:[/?#][!-~]*)?"
)


class TransferLink(BaseOperatorLink):
    """The transfer in the service's web application. Airflow requests the link when an attempt ends or defers."""

    name = "Transfer"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return what :func:`push_link` stored in this attempt; "" if it was not called."""
        from airflow.sdk.execution_time.xcom import XCom

        return str(XCom.get_value(ti_key=ti_key, key=self.xcom_key) or "")


def push_link(context: Any, settings: Settings, transfer_id: object) -> None:
    """Link the running task instance to a transfer; a failure is logged and does not fail the task."""
    try:
        context["ti"].xcom_push(TransferLink().xcom_key, link_to(settings, transfer_id))
    except Exception as error:
        log.warning("Could not store the link to transfer '%s': %s", transfer_id, error)


def find_web_url(conn_id: str) -> str:
    """Return the connection's ``web_url``, or its address; "" if the connection cannot be read."""
    with suppress(Exception):  # any secrets backend may fail in its own way; the page works without links
        settings = settings_from_connection(BaseHook.get_connection(conn_id))
        return settings.web_url or settings.base_url
    return ""


def link_to(settings: Settings, transfer_id: object) -> str:
    """Return the address of a transfer of the account; see :func:`transfer_url`."""
    return transfer_url(settings.web_url or settings.base_url, transfer_id)


def transfer_url(web_url: str, transfer_id: object) -> str:
    """Return the address of a transfer in the web application; "" if no safe link is possible.

    :param web_url: the application's URL, with ``{transfer_id}``; without it, ``/transfers/{transfer_id}`` is appended.
    :param transfer_id: quoted as a whole, so that it cannot lead to another page.
    """
    is_id = isinstance(transfer_id, str) and transfer_id.strip(".") and is_valid_unicode(transfer_id)
    if not is_id or not _SAFE_URL.fullmatch(web_url):
        return ""
    if "{transfer_id}" not in web_url:
        web_url = "" if {"?", "#"} & set(web_url) else f"{web_url.rstrip('/')}/transfers/{{transfer_id}}"
    return web_url.replace("{transfer_id}", quote(str(transfer_id), safe=""))
