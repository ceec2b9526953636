"""The names of accounts in a warehouse, each bound to the site address that it was first used with."""

from __future__ import annotations

from outbound_transfer.warehouse.database import Warehouse, scalar
from outbound_transfer.warehouse.destination import check_address
from outbound_transfer.warehouse.schema import ACCOUNTS_GROUP, ensure_schema, is_current
from outbound_transfer.warehouse.tables import ACCOUNTS
from outbound_transfer.warehouse.timestamps import format_timestamp


def bind_account(warehouse: Warehouse, account: str, address: str) -> None:
    """Bind an account's name to a site address, unless it is bound.

    :raises OtherAccount: it is bound to another one.
    """
    ensure_schema(warehouse, ACCOUNTS_GROUP, warehouse.now())
    if read_address(warehouse, account) is None:
        warehouse.retry_on_conflict(lambda: _insert(warehouse, account, address))
    name = warehouse.prefix + ACCOUNTS.name
    check_address(account, read_address(warehouse, account), address, f"delete its row in the table {name}")


def read_address(warehouse: Warehouse, account: str) -> str | None:
    """Return the site address that an account's name is bound to; None if it is not bound."""
    with warehouse.read() as tx:
        if not is_current(warehouse, tx, ACCOUNTS_GROUP):
            return None
        found = scalar(tx, warehouse.render("SELECT [address] FROM {accounts} WHERE [account] = ?"), (account,))
        return None if found is None else str(found)


def _insert(warehouse: Warehouse, account: str, address: str) -> None:
    with warehouse.transaction() as tx:
        warehouse.insert(tx, ACCOUNTS, [(account, address, format_timestamp(warehouse.now(tx)))])
