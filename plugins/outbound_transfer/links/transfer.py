"""The link from a task instance to its transfer in the service's web application."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.hooks.connection import settings_from_connection
from outbound_transfer.links.web import link_to

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from outbound_transfer.client.settings import Settings

log = logging.getLogger(__name__)


class TransferLink(BaseOperatorLink):
    """The transfer in the service's web application.

    Airflow calls this class when a try ends or defers. :func:`push_link` stores the link as soon as the transfer is
    known, so that the page has it while the task runs.
    """

    name = "Transfer"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return what :func:`push_link` stored in this try, "" if it was not called."""
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
