"""Errors of the store. A database's message is shown as one line, as its other lines may quote a row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from outbound_transfer.client.errors import OutboundTransferError

#: A word with an address, as far as it can be recognized in a text, JSON and URLs.
_PART: Final = r"[^\s,;:<>\"'()\[\]{}=|/&?\\@]"
AT: Final = r"(?:@|%(?:25)*40|(?:\\+|%5C)u0040)"
ADDRESS: Final = re.compile(rf"(?<!{_PART}){_PART}{{1,320}}(?:{AT}{_PART}{{1,320}})+")

#: How databases report a full disk.
_FULL: Final = re.compile("disk( is)? full|no space left", re.IGNORECASE)


def first_line(error: BaseException | None) -> str:
    """Return the first line of a database's message, without addresses and the texts of the rows that it was given."""
    cause = getattr(error, "orig", None) or error
    line = ADDRESS.sub("***", next(iter(str(cause).strip().splitlines()), type(cause).__name__))
    for text in sorted(filter(lambda each: each in line, _texts(getattr(error, "params", ()))), key=len, reverse=True):
        line = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "***", line)
    return line


def _texts(given: Any) -> Iterator[str]:
    """Yield the texts of two letters or more in a statement's parameters, which may be rows as JSON."""
    if isinstance(given, str) and given.startswith("[{"):
        with suppress(ValueError, RecursionError):
            given = json.loads(given)
    if isinstance(given, str):
        yield from [given] if len(given) > 1 else []
    elif isinstance(given, Mapping | list | tuple):
        for each in given.values() if isinstance(given, Mapping) else given:
            yield from _texts(each)


def code_of(error: BaseException | None) -> Any:
    """Return a driver's SQLSTATE or number of an error; its text if the database has no codes."""
    driver: Any = getattr(error, "orig", None) or error
    return getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None) or next(iter(driver.args), "")


def words_of(error: BaseException | None) -> str:
    """Return class, code and first line of an error, by the driver's own if SQLAlchemy has wrapped it."""
    cause: Any = getattr(error, "orig", None) or error
    code, text = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None), first_line(error)[:300]
    remedy = ". Make room on the disk of the database" if _FULL.search(text) else ""
    return f"{type(cause).__name__}{f' {code}' if code else ''}: {text}{remedy}"


class UnsupportedDatabase(OutboundTransferError):
    """This database or driver is not supported. What to do: use one that the message names. Not retried."""


class UnusableDatabase(OutboundTransferError):
    """The tables cannot be created. What to do: create the schema, or allow the role to create tables."""


class NoDeliveriesTable(OutboundTransferError):
    """No database is set for the table of deliveries. What to do: set ``[outbound_transfer] deliveries_conn_id``."""


class DeliveriesUnavailable(OutboundTransferError):
    """The deliveries database does not respond or is full. What to do: check the one in the message. Retried."""


class DatabaseFailed(OutboundTransferError):
    """The database with the feed's or transfers' tables failed. What to do: see the message. Retried."""


class DeliveryKeyInUse(OutboundTransferError):
    """Another task delivers under this key. What to do: give the task retries; a retry returns the same transfer."""


class WarehouseError(OutboundTransferError):
    """Base class of errors about the feed's and the transfers' tables."""


class NotASqlConnection(WarehouseError):
    """The connection's hook is not a ``DbApiHook``. What to do: name the connection of a SQL database. Not retried."""


class InvalidName(WarehouseError, ValueError):
    """The database would change a name. What to do: shorten the prefix, schema or account. Not retried."""


class PageRefused(WarehouseError):
    """The database rejects every row of a page. What to do: correct what the message names, then run again."""


class TooManyRejectedLines(WarehouseError):
    """A page has too many rejected lines; it was not loaded. What to do: inspect it, or raise ``max_rejected``."""


class MissingTables(WarehouseError):
    """The views read tables that do not exist yet. What to do: run the operators that the message names once."""


class UnknownFeed(WarehouseError):
    """The tables have no cursor of the feed. What to do: pass ``--account`` with a name from the message."""


class InvalidCursor(WarehouseError):
    """A stored or requested cursor is not valid. What to do: run ``feed rebuild-cursor``, or ``reset --to``."""


class CursorMoved(WarehouseError):
    """Another reader loaded the page, or a user reset the cursor; nothing was loaded. The task stops and succeeds.

    What to do: run one ingestion for each account (``max_active_runs=1``). After a command, see ``feed status``.
    """


class KeyOfAnotherUser(WarehouseError):
    """The connection's key sees none of the transfers that the tables have for it; nothing was stored. Not retried.

    What to do: restore the connection's key, or use a connection with another id for the other user. If the
    service has deleted the stored transfers, delete the connection's row in the table ``transfer_sync``.
    """


class OtherAccount(WarehouseError):
    """The account's name is bound to another account than the connection's; nothing was loaded. Not retried.

    What to do: correct the connection, or set another ``account``. If the account has moved, follow the message.
    """


class WarehouseBusy(WarehouseError):
    """Other processes locked the database for too long. What to do: close the program that has it open. Retried."""


class NotAnIcebergConnection(WarehouseError):
    """The connection's type is not Iceberg. What to do: name one of that type; install the extra ``iceberg``."""


class UnusableTable(WarehouseError):
    """A table is missing, is not as this package creates it, or has another owner. Not retried.

    What to do: undo the listed change, name another table, create the namespace, or run the command as the owner.
    """
