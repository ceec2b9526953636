"""The Airflow connection, and every endpoint of the service as a method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.lineage import get_hook_lineage_collector
from airflow.sdk.log import amask_secret, mask_secret

from outbound_transfer.assets import account_namespace
from outbound_transfer.protocol import calls, flows
from outbound_transfer.protocol.errors import InvalidRequest, OutboundTransferError, RateLimited, ServiceError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from outbound_transfer.client import AsyncClient, Client, Settings
    from outbound_transfer.protocol.exchange import Call, Flow, Upload
    from outbound_transfer.protocol.feed import Page
    from outbound_transfer.protocol.models import File, NewTransfer, Transfer, TransferPage

T = TypeVar("T")


class OutboundTransferHook(BaseHook):
    """Talks to the Outbound Transfer Service.

    Every method repeats its call as the retry policy allows, so each may take as long as that policy is patient.

    :param outbound_transfer_conn_id: the connection: host is the service's address, password the transfer API key;
        extra fields ``event_api_key``, ``timeout`` (seconds), ``verify`` (TLS) and ``web_url`` are optional.
    :param client_options: further arguments of :class:`outbound_transfer.client.Client`: the retry policy, what is
        told of waits, the clock and the sleep.
    """

    conn_name_attr = "outbound_transfer_conn_id"
    default_conn_name = "outbound_transfer_default"
    conn_type = "outbound_transfer"
    hook_name = "Outbound Transfer"

    def __init__(
        self,
        outbound_transfer_conn_id: str = default_conn_name,
        **client_options: Any,
    ) -> None:
        super().__init__()
        self.outbound_transfer_conn_id = outbound_transfer_conn_id
        self._options = client_options
        self._client: Client | None = None

    def get_conn(self) -> Client:
        """The client, made at first use and kept; :meth:`close` it, or use the hook as a context manager."""
        if self._client is None:
            from outbound_transfer.client import Client

            settings = settings_of(self.get_connection(self.outbound_transfer_conn_id))
            mask_secret(settings.event_api_key)  # Airflow masks the password, of the extra fields only the whole text
            self._client = Client(settings, **self._watched(settings))
        return self._client

    async def get_async_conn(self) -> AsyncClient:
        """A new client for the triggerer; the caller closes it."""
        from outbound_transfer.client import AsyncClient

        settings = await self.get_async_settings()
        return AsyncClient(settings, **self._watched(settings))

    def _watched(self, settings: Settings) -> dict[str, Any]:
        from outbound_transfer.watching import CallWatch

        return {"observer": CallWatch(self.outbound_transfer_conn_id, settings.base_url), **self._options}

    async def get_async_settings(self) -> Settings:
        """The connection's settings as they are now.

        :raises InvalidSettings: there is no such connection, or naming the field to correct.
        """
        from outbound_transfer.client.settings import InvalidSettings

        try:
            settings = settings_of(await BaseHook.aget_connection(self.outbound_transfer_conn_id))
        except AirflowNotFoundException as error:
            raise InvalidSettings(str(error)) from error
        await amask_secret(settings.event_api_key)
        return settings

    def perform(self, call: Call[T]) -> T:
        """Any call of :mod:`outbound_transfer.protocol.calls`."""
        return self.get_conn().perform(call)

    def run(self, flow: Flow[T]) -> T:
        """Any conversation of :mod:`outbound_transfer.protocol.flows`."""
        return self.get_conn().run(flow)

    def create_transfer(self, new: NewTransfer) -> Transfer:
        """Create a draft of what :func:`outbound_transfer.protocol.models.new_transfer` checked."""
        return self.run(flows.create_draft(new, drafts=2))

    def list_transfers(
        self, *, status: str = "all", limit: int = calls.MAX_PAGE, cursor: str | None = None
    ) -> TransferPage:
        """One page of sent transfers, newest first; ``limit`` is 1 to 100."""
        return self.perform(calls.list_transfers(limit=limit, status=status, cursor=cursor))

    def iter_transfers(self, *, status: str = "all", page_size: int = calls.MAX_PAGE) -> Iterator[Transfer]:
        """Every sent transfer, newest first. A status other than ``all`` may skip rows that change while paging.

        Rows that are no transfers as documented are left out, and said in the log.
        """
        cursor: str | None = None
        while True:
            page = self.list_transfers(status=status, limit=page_size, cursor=cursor)
            yield from page.data
            if page.unreadable:
                self.log.warning(
                    "%d rows of the listing are no transfers: %s", len(page.unreadable), page.unreadable[0]
                )
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor

    def get_transfer(self, transfer_id: str) -> Transfer:
        """One transfer, draft or sent, with its files and each recipient's ``picked_up_at``."""
        return self.perform(calls.get_transfer(transfer_id))

    def attach_file(self, transfer_id: str, upload: Upload) -> File:
        """Attach a file to a draft; where the name is attached already, the existing file."""
        file = self.perform(calls.attach_file(transfer_id, upload)).file
        self._report(read=upload.location, written="transfers")
        return file

    def list_files(self, transfer_id: str) -> tuple[File, ...]:
        """The files of a transfer, draft or sent."""
        return self.perform(calls.list_files(transfer_id))

    def get_file(self, transfer_id: str, file_id: str) -> File:
        """One file's record."""
        return self.perform(calls.get_file(transfer_id, file_id))

    def remove_file(self, transfer_id: str, file_id: str) -> None:
        """Remove a file from a draft."""
        self.perform(calls.remove_file(transfer_id, file_id))

    def discard_transfer(self, transfer_id: str) -> None:
        """Remove a draft; a sent transfer is refused with ``InvalidState``."""
        self.perform(calls.discard_transfer(transfer_id))

    def send_transfer(self, transfer_id: str) -> Transfer:
        """Send a draft, once: where it was sent already, the sent transfer."""
        return self.perform(calls.send_transfer(transfer_id))

    def read_events(self, *, cursor: int = 0, limit: int = calls.MAX_EVENTS) -> Page:
        """One page of the event feed; a success spends the account's one request a minute."""
        page = self.perform(calls.read_events(cursor=cursor, limit=limit))
        self._report(read=self._asset("events"))
        return page

    def _report(self, *, read: str, written: str = "") -> None:
        """Tell Airflow's hook lineage, which collects nothing unless somebody reads it."""
        try:
            collector = get_hook_lineage_collector()
            if read:
                collector.add_input_asset(self, uri=read if "://" in read else Path(read).absolute().as_uri())
            if written:
                collector.add_output_asset(self, uri=self._asset(written))
        except Exception as error:  # not every address can be an asset's, and what was done is done
            self.log.debug("Not in the lineage: %s", error)

    def _asset(self, name: str) -> str:
        return f"{account_namespace(self.get_conn().settings.base_url)}/{name}"

    def test_connection(self) -> tuple[bool, str]:
        """Whether the keys are accepted. Never spends the feed's minute: its key is probed with a refused request."""
        from outbound_transfer.client import Client, RetryPolicy

        try:
            settings = settings_of(self.get_connection(self.outbound_transfer_conn_id))
            with Client(settings, policy=RetryPolicy(attempts=2, patience=5)) as client:
                _check_key(client, calls.list_transfers(limit=1), RateLimited)
                if not settings.event_api_key:
                    return True, "The transfer key is accepted. No event_api_key is set, so the feed cannot be read."
                _check_key(client, calls.probe_feed(), RateLimited, InvalidRequest)
        except (OutboundTransferError, ValueError) as error:
            return False, str(error)
        return True, "The transfer key and the event key are accepted."

    def close(self) -> None:
        """Close the client's connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> OutboundTransferHook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_key(client: Client, call: Call[Any], *refusals: type[ServiceError]) -> None:
    # A request that is refused for its cursor, or for an allowance that others have used up, had a good key.
    with suppress(*refusals):
        client.perform(call)


def settings_of(connection: Connection) -> Settings:
    """The settings of an Airflow connection.

    :raises InvalidSettings: naming the field to correct.
    """
    from outbound_transfer.client.settings import DEFAULT_TIMEOUT, InvalidSettings, Settings

    extra = connection.extra_dejson
    try:
        timeout = float(extra.get("timeout") or DEFAULT_TIMEOUT)
    except (TypeError, ValueError):
        raise InvalidSettings("the extra field timeout must be a number of seconds") from None
    return Settings(
        base_url=base_url(connection.host or "", connection.schema or "", connection.port),
        transfer_api_key=connection.password or "",
        event_api_key=str(extra.get("event_api_key") or ""),
        timeout=timeout,
        verify=_as_bool(extra.get("verify"), default=True),
        web_url=str(extra.get("web_url") or ""),
    )


def base_url(host: str, schema: str = "", port: int | None = None) -> str:
    """The address of a connection's fields; https where no scheme is given, port 0 the same as none."""
    from outbound_transfer.client.settings import InvalidSettings

    try:
        url = urlsplit(host if "://" in host else f"{schema or 'https'}://{host}")
    except ValueError:
        raise InvalidSettings("the host is not an address: check its brackets") from None
    netloc = url.netloc.removesuffix(":0")
    if port and ":" not in netloc.rpartition("]")[2]:
        netloc = f"{netloc}:{port}"
    return urlunsplit(url._replace(netloc=netloc, path=url.path.rstrip("/") + "/"))


def _as_bool(value: object, *, default: bool) -> bool:
    if value is None or value == "":
        return default
    # A connection made from the environment carries text; only a plain no switches the check off.
    return str(value).strip().lower() not in ("false", "0", "no", "off")
