"""Where the service's web application shows a transfer, and the link to it on a task instance."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from outbound_transfer.client import Settings

log = logging.getLogger(__name__)

#: Stands for a transfer's id in a connection's ``web_url``.
PLACEHOLDER: Final = "{transfer_id}"

#: What may stand in a link as it is.
_PLAIN: Final = re.compile(r"[\x21-\x7e]+")


def transfer_url(web_url: str, transfer_id: object) -> str:
    """Where the web application at ``web_url`` shows a transfer; "" where no link could be safe.

    service.md does not name the web application's addresses. So ``web_url`` may say by ``{transfer_id}`` where an id
    belongs; without it, the page is ``/transfers/{transfer_id}`` below, as in the API's own paths.

    :param transfer_id: opaque, and quoted whole, so that none reaches another page. What is no id, such as a template's
        None, is refused by the call that uses it.
    """
    if not isinstance(transfer_id, str) or not transfer_id.strip(".") or not _is_safe(web_url):
        return ""
    with suppress(UnicodeEncodeError):
        quoted = quote(transfer_id, safe="")
        if PLACEHOLDER in web_url:
            return web_url.replace(PLACEHOLDER, quoted)
        return f"{web_url.rstrip('/')}/transfers/{quoted}"
    return ""


def _is_safe(web_url: str) -> bool:
    """A browser is led to a web page, by an address that holds no key and no other host than it shows."""
    try:
        url = urlsplit(web_url)
    except ValueError:
        return False
    names_a_page = PLACEHOLDER in web_url or not (url.query or url.fragment)
    return bool(
        _PLAIN.fullmatch(web_url)
        and url.scheme in ("http", "https")
        and url.hostname
        and not {"@", "{", "\\"} & set(url.netloc)
        and names_a_page
    )


def url_of(settings: Settings, transfer_id: object) -> str:
    """The same for a connection: its web application, or the service's address where none is named."""
    return transfer_url(settings.web_url or settings.base_url, transfer_id)


class TransferLink(BaseOperatorLink):
    """The transfer in the service's web application.

    Airflow stores a link when a try ends or defers, and asks this class for it then; :func:`show` stores it as soon as
    the transfer is known, so that it is there while the task runs.
    """

    name = "Transfer"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """What :func:`show` stored in this try; "" where it was not called."""
        from airflow.sdk.execution_time.xcom import XCom

        return str(XCom.get_value(ti_key=ti_key, key=self.xcom_key) or "")


def show(context: Any, settings: Settings, transfer_id: object) -> None:
    """Link the running task instance to a transfer; a link that cannot be stored fails no task."""
    try:
        context["ti"].xcom_push(TransferLink().xcom_key, url_of(settings, transfer_id))
    except Exception as error:
        log.warning("The link to the transfer is not stored: %s", error)


def show_of(context: Any, conn_id: str, transfer_id: object) -> None:
    """The same for a task that has no client yet; what is wrong with its connection is told by who uses that."""
    from airflow.sdk import BaseHook

    from outbound_transfer.hooks.outbound_transfer import settings_of

    with suppress(Exception):
        show(context, settings_of(BaseHook.get_connection(conn_id)), transfer_id)
