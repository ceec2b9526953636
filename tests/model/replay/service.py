"""The real service of a replay: two accounts in sandboxes, each on a socket, and what happens in them.

Only operators use the socket: what is to be known of the service, or to happen in it, is asked and done behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from model.world import CONNECTIONS
from outbound_transfer.client import Client, Observer, Request, Settings
from outbound_transfer.client.transport import open_client, send
from outbound_transfer_sandbox import testing
from outbound_transfer_sandbox.domain.errors import ApiError
from outbound_transfer_sandbox.service.sandbox import SandboxService
from outbound_transfer_sandbox.testing import Sandbox
from support.connections import connection_json

#: More calls and transfers than schedules make: the limits of an account are not what they are about.
_UNLIMITED: Final = 10**6

_OTHER_USER: Final = "bob@example.com"


class Account:
    """One account, with the service behind it."""

    def __init__(self, service: SandboxService, sandbox: Sandbox) -> None:
        self.service, self.sandbox = service, sandbox
        sandbox.patch_account(requests_per_window=_UNLIMITED, outstanding_transfer_limit=_UNLIMITED)

    def status(self, transfer_id: str) -> str:
        """Return draft, sent, or gone."""
        try:
            return "draft" if self.service.transfers.find(transfer_id).status == "draft" else "sent"
        except ApiError:
            return "gone"

    def sent(self) -> list[str]:
        """Return the ids of what was billed, once for each time."""
        rows = self.service.context.db.fetch_all("SELECT transfer_id FROM ledger WHERE kind = 'billed'")
        return [row["transfer_id"] for row in rows]

    def remove(self, transfer_id: str) -> None:
        """Delete a transfer, sent or not, as nobody can through the API."""
        self.service.context.transfers.remove(self.service.transfers.find(transfer_id).pk)

    def rename(self, transfer_id: str, new_id: str) -> None:
        """Give a transfer another id."""
        self.service.context.db.run("UPDATE transfers SET id = ? WHERE id = ?", new_id, transfer_id)


class Service:
    """Both accounts, and the connections that lead to them."""

    def __init__(self, first: Account, other: Account) -> None:
        self._accounts = {"a": first, "b": other}
        first_connection = connection_json(first.sandbox, verify=False)
        state = first.sandbox.state()
        self.connections = {
            "first": first_connection,
            "new key": _with_key(first_connection, first.sandbox.new_key(state["user"])),
            "other user": _with_key(first_connection, first.sandbox.new_key(_OTHER_USER)),
            "other account": connection_json(other.sandbox, verify=False),
        }

    def account(self, connection: str) -> Account:
        """Return the account that a connection of the model leads to."""
        return self._accounts[CONNECTIONS[connection].account]

    def account_at(self, base_url: str) -> Account:
        """Return the account at an address."""
        return next(each for each in self._accounts.values() if each.sandbox.base_url == base_url.rstrip("/"))

    def sent(self) -> list[str]:
        """Return the ids of what was billed, once for each time."""
        return [each for account in self._accounts.values() for each in account.sent()]

    def advance_clock(self, seconds: float) -> None:
        for account in self._accounts.values():
            account.service.advance_clock(seconds)

    def client(self, connection: str) -> Client:
        """Return a client of somebody else, who uses the same key."""
        given = json.loads(self.connections[connection])
        settings = Settings(base_url=given["host"], transfer_api_key=given["password"], verify=False)
        return Client(settings)


def _with_key(connection: str, key: str) -> str:
    return json.dumps({**json.loads(connection), "password": key})


@contextmanager
def running_service() -> Iterator[Service]:
    """Run both accounts on loopback, in threads of this process."""
    with ExitStack() as stack:
        yield Service(*(stack.enter_context(_running_account()) for _ in range(2)))


@contextmanager
def _running_account() -> Iterator[Account]:
    with (
        TemporaryDirectory() as folder,
        closing(SandboxService(Path(folder), durable=False)) as service,
        testing._serving(service, 0) as url,
        closing(Sandbox(url, *service.ensure_keys(None, None))) as sandbox,
    ):
        yield Account(service, sandbox)


def make_late_call(settings: Settings, request: Request) -> None:
    """Make the call of a process that is gone."""
    with open_client(settings) as http:
        send(http, settings, request, Observer(), ())
