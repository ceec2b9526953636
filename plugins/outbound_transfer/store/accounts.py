"""The names of accounts in a database, each bound to the site address that it was first used with."""

from __future__ import annotations

import sqlalchemy as sa

from outbound_transfer.store.destination import check_address
from outbound_transfer.store.schema import Tables
from outbound_transfer.store.tables import ACCOUNTS
from outbound_transfer.store.values import utc_now


def bind_account(tables: Tables, account: str, address: str) -> None:
    """Bind an account's name to a site address, unless it is bound.

    :raises OtherAccount: it is bound to another one.
    """
    tables.create([ACCOUNTS])
    bound = tables.database.retry(lambda: _find_or_insert(tables, account, address))
    check_address(account, bound, address, f"delete its row in the table {tables.named(ACCOUNTS).name}")


def _find_or_insert(tables: Tables, account: str, address: str) -> str:
    accounts = tables.named(ACCOUNTS)
    with tables.database.begin() as tx:
        bound: str | None = tx.scalar(sa.select(accounts.c.address).where(accounts.c.account == account))
        if bound is None:
            tx.execute(sa.insert(accounts), {"account": account, "address": address, "bound_at": utc_now()})
    return address if bound is None else bound


def read_address(tables: Tables, account: str) -> str | None:
    """Return the site address that an account's name is bound to; None if it is not bound."""
    if not tables.exist([ACCOUNTS]):
        return None
    accounts = tables.named(ACCOUNTS)
    with tables.database.begin() as tx:
        found: str | None = tx.scalar(sa.select(accounts.c.address).where(accounts.c.account == account))
    return found
