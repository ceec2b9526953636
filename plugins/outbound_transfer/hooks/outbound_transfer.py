"""The Airflow hook: one method for each endpoint of the service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outbound_transfer.airflow_compat.names import BaseHook, mask_secret
from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.hooks.connection import settings_from_connection
from outbound_transfer.wording import pluralize

if TYPE_CHECKING:
    from outbound_transfer.client.client import Client
    from outbound_transfer.client.events import Page
    from outbound_transfer.client.models import File, Transfer, TransferPage, Upload
    from outbound_transfer.client.new_transfer import NewTransfer
    from outbound_transfer.client.settings import Settings


class OutboundTransferHook(BaseHook):
    """Interact with the Outbound Transfer Service.

    Each method repeats its call as the retry policy allows, up to the policy's ``timeout``. It raises a
    :class:`~outbound_transfer.client.errors.CallError`: a ``ServiceError`` if the service refuses, another one if there
    is no response.

    :param outbound_transfer_conn_id: the connection: host is the service's address, password the transfer API key;
        extra fields ``event_api_key``, ``timeout`` (seconds), ``verify`` (TLS) and ``web_url`` are optional.
    :param client_options: additional arguments for ``Client``, such as ``policy``.
    """

    conn_name_attr = "outbound_transfer_conn_id"
    default_conn_name = "outbound_transfer_default"
    conn_type = "outbound_transfer"
    hook_name = "Outbound Transfer"

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:  # before Airflow 3.2, like the next one
        from outbound_transfer.airflow_compat.connection_form import form_widgets

        return form_widgets()

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        from outbound_transfer.airflow_compat.connection_form import TYPE

        return {key.replace("-", "_"): value for key, value in TYPE["ui-field-behaviour"].items()}

    def __init__(self, outbound_transfer_conn_id: str = default_conn_name, **client_options: Any) -> None:
        super().__init__()
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self._options = client_options
        self._client: Client | None = None

    def get_conn(self) -> Client:
        """Return the client, created once; :meth:`close` it, or use the hook as a context manager.

        :raises InvalidSettings: the error names the connection's field to correct.
        """
        if self._client is None:
            from outbound_transfer.client.client import Client, log_retry
            from outbound_transfer.hooks.call_observer import CallObserver

            settings, on_retry = self.read_settings(), self._options.get("on_retry", log_retry)
            observer = CallObserver(self.outbound_transfer_conn_id, settings.account, on_retry)
            options = {**self._options, "on_attempt": observer.on_attempt, "on_retry": observer.on_retry}
            self._client = Client(settings, **options)
        return self._client

    def get_account(self) -> str:
        """Return the account's name; see ``Settings.account``."""
        return self.get_conn().settings.account

    def read_settings(self) -> Settings:
        """Read the connection and return its settings.

        :raises InvalidSettings: the error names the field to correct.
        """
        settings = settings_from_connection(self.get_connection(self.outbound_transfer_conn_id))
        mask_secret(settings.event_api_key)  # Airflow masks the password, but the extra only as a whole
        return settings

    def create_transfer(self, new: NewTransfer) -> Transfer:
        """Create a draft from the result of ``build_new_transfer`` (service-api.md, R22).

        :raises WrongTransfer: the response is about another transfer.
        """
        for secret in new.secrets:
            mask_secret(secret)
        return self.get_conn().create_transfer(new)

    def list_transfers(self, *, status: str = "all", limit: int = 100, cursor: str | None = None) -> TransferPage:
        """List sent transfers, newest first, one page (service-api.md, R26 to R28).

        :param status: ``all``, or one status to filter by.
        :param limit: transfers per page, 1 to 100.
        :param cursor: ``next_cursor`` of the previous page.
        """
        return self.get_conn().list_transfers(status=status, limit=limit, cursor=cursor)

    def iter_transfers(self, *, status: str = "all", page_size: int = 100) -> Iterator[Transfer]:
        """Yield every sent transfer, newest first.

        A status filter may skip transfers that change while paging (service-api.md, R28). Rows that are not valid
        transfers are logged and left out.
        """
        cursors: list[str | None] = [None]  # None also ends the listing; any other repeated cursor would loop forever
        while cursors.count(cursors[-1]) == 1:
            page = self.list_transfers(status=status, limit=page_size, cursor=cursors[-1])
            yield from page.data
            if page.unreadable:
                rows = pluralize(len(page.unreadable), "row")
                self.log.warning("%s of the listing cannot be read as a transfer: %s", rows, page.unreadable[0])
            cursors.append(page.next_cursor)

    def get_transfer(self, transfer_id: str) -> Transfer:
        """Read a transfer, draft or sent, with its files and each ``picked_up_at`` (service-api.md, R29)."""
        return self.get_conn().get_transfer(transfer_id)

    def attach_file(self, transfer_id: str, upload: Upload) -> File:
        """Attach a file to a draft (service-api.md, R30 to R33).

        :return: the new file; the existing one if the draft already has a file with this name, whatever its content.
        """
        return self.get_conn().attach_file(transfer_id, upload).file

    def list_files(self, transfer_id: str) -> tuple[File, ...]:
        """List the files of a transfer, draft or sent (service-api.md, R34)."""
        return self.get_conn().list_files(transfer_id)

    def get_file(self, transfer_id: str, file_id: str) -> File:
        """Read one file's record (service-api.md, R34)."""
        return self.get_conn().get_file(transfer_id, file_id)

    def remove_file(self, transfer_id: str, file_id: str) -> None:
        """Remove a file from a draft (service-api.md, R34)."""
        self.get_conn().remove_file(transfer_id, file_id)

    def discard_transfer(self, transfer_id: str) -> None:
        """Remove a draft (service-api.md, R35).

        :raises InvalidState: the transfer was sent.
        :raises NotFound: the key cannot see the transfer.
        """
        self.get_conn().discard_transfer(transfer_id)

    def send_transfer(self, transfer_id: str) -> Transfer:
        """Send a draft once (service-api.md, R36 to R39).

        :return: the sent transfer, even if it was sent before.
        """
        client = self.get_conn()
        return client.retry("send", lambda _: client.send_once(transfer_id))

    def read_events(self, *, cursor: int = 0, limit: int = 1_000) -> Page:
        """Read one page of the event feed; uses up the account's one request a minute (service-api.md, R40 to R47)."""
        return self.get_conn().read_events(cursor=cursor, limit=limit)

    def test_connection(self) -> tuple[bool, str]:
        """Check that the service responds and accepts both keys, without using up the feed's request of the minute.

        :return: whether the connection works, and a message for the user.
        """
        from outbound_transfer.hooks.health import check_service, summarize

        try:
            return summarize(check_service(self.read_settings()))
        except (OutboundTransferError, ValueError) as error:
            return False, str(error)

    def close(self) -> None:
        """Close the client's HTTP connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> OutboundTransferHook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
