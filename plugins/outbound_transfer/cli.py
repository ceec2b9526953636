"""``airflow outbound-transfer feed …``: what operations does to the event feed's tables by hand."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

if TYPE_CHECKING:
    from outbound_transfer.warehouse.feed import FeedTables

_WAREHOUSE = (
    Arg(("--sql-conn-id",), help="The warehouse's connection", required=True),
    Arg(("--table-prefix",), help="Begins the tables' names", default="outbound_transfer_"),
    Arg(("--schema",), help="Where the tables are; the connection's own where not given"),
    Arg(("--feed",), help="Which feed; needed only where the tables hold several"),
)
_YES = Arg(("-y", "--yes"), help="Do not ask first", action="store_true")


def get_commands() -> list[GroupCommand]:
    """What Airflow adds to its own commands."""
    feed = GroupCommand(
        name="feed",
        help="The event feed's tables",
        subcommands=(
            _command("status", "Cursor, lag, last poll, rejected lines", _status),
            _command("verify", "Check order, duplicates, and the cursor against the rows and the log", _verify),
            _command("rebuild-cursor", "Set the cursor by the rows: the last page is read once more", _rebuild, _YES),
            _command(
                "reset", "Set the cursor", _reset, Arg(("--to",), help="The new cursor", type=int, required=True), _YES
            ),
            _command("replay-rejected", "Land the rejected lines that can be read by now", _replay),
        ),
    )
    return [GroupCommand(name="outbound-transfer", help="Outbound Transfer Service", subcommands=(feed,))]


def _command(name: str, text: str, function: Callable[[Namespace], None], *arguments: Arg) -> ActionCommand:
    return ActionCommand(name=name, help=text, func=_run(function), args=(*_WAREHOUSE, *arguments))


def _run(function: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    @wraps(function)
    def run(arguments: Namespace) -> None:
        from outbound_transfer.warehouse.errors import WarehouseError

        try:
            with _all_connections():
                function(arguments)
        except WarehouseError as error:
            raise SystemExit(str(error)) from error

    return run


@contextmanager
def _all_connections() -> Iterator[None]:
    """Find connections in Airflow's database too, as ``airflow connections get`` does."""
    before = os.environ.get(_CONTEXT)
    os.environ[_CONTEXT] = "server"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CONTEXT]
        else:
            os.environ[_CONTEXT] = before


#: By this Airflow tells which process may ask its database; a command of ``airflow`` that does not say it may not.
_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"


def _status(arguments: Namespace) -> None:
    import msgspec

    from outbound_transfer.warehouse.upkeep import status

    for name, shown in msgspec.to_builtins(status(_tables(arguments))).items():
        print(f"{name:<12} {'-' if shown is None else shown}")  # noqa: T201


def _verify(arguments: Namespace) -> None:
    from outbound_transfer.warehouse.upkeep import faults

    found = list(faults(_tables(arguments)))
    if found:
        raise SystemExit("\n".join(found))
    print("All is well.")  # noqa: T201


def _rebuild(arguments: Namespace) -> None:
    from outbound_transfer.warehouse.upkeep import rebuild

    tables = _tables(arguments)
    _ask(arguments, f"Set the cursor of {tables.feed} by the rows? It is {tables.known_cursor()}.")
    print("The cursor was {} and is {}.".format(*rebuild(tables)))  # noqa: T201


def _reset(arguments: Namespace) -> None:
    from outbound_transfer.warehouse.upkeep import reset

    tables = _tables(arguments)
    _ask(arguments, f"Set the cursor of {tables.feed} from {tables.known_cursor()} to {arguments.to}?")
    print("The cursor was {} and is {}.".format(*reset(tables, arguments.to)))  # noqa: T201


def _replay(arguments: Namespace) -> None:
    from outbound_transfer.warehouse.upkeep import replay

    print("{} lines landed, {} are left.".format(*replay(_tables(arguments))))  # noqa: T201


def _ask(arguments: Namespace, question: str) -> None:
    if not arguments.yes and input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise SystemExit("Nothing was changed.")


def _tables(arguments: Namespace) -> FeedTables:
    from outbound_transfer.transfers.common import warehouse_of
    from outbound_transfer.warehouse.feed import FeedTables
    from outbound_transfer.warehouse.upkeep import check_known, feeds

    warehouse = warehouse_of(arguments.sql_conn_id, arguments.table_prefix, arguments.schema)
    found = [arguments.feed] if arguments.feed else feeds(warehouse)
    if len(found) != 1:
        raise SystemExit(f"--feed must say which: {', '.join(found)}" if found else "No feed has been read here yet.")
    tables = FeedTables(warehouse, found[0])
    check_known(tables)
    return tables
