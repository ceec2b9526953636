"""The command ``outbound-transfer``: its subcommands and arguments, without the modules that run them."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from datetime import timedelta

from airflow.cli.cli_config import ARG_OUTPUT, ARG_YES, ActionCommand, Arg, GroupCommand, lazy_load_command


def parse_days(text: str) -> timedelta:
    """Parse a number of days from 1 on, for example ``90d``."""
    if not re.fullmatch(r"[1-9][0-9]{0,4}d", text):
        raise ArgumentTypeError(f"'{text}' is not a number of days, such as 90d")
    return timedelta(days=int(text[:-1]))


#: The tables of a SQL database, without an account: a person is the same in all accounts.
_TABLES = (
    Arg(("--sql-conn-id",), help="Connection of the warehouse, if the feed is in a SQL database"),
    Arg(("--table-prefix",), help="Prefix of its table names", default="outbound_transfer_"),
    Arg(("--schema",), help="Schema of its tables (default: the connection's own)"),
)
_WAREHOUSE = (
    *_TABLES,
    Arg(("--iceberg-conn-id",), help="Connection of the catalog, if the feed is in an Iceberg table"),
    Arg(("--table",), help="Iceberg namespace and table, such as lake.outbound_transfer_events"),
    Arg(("--account",), help="Account of the feed; required if there are several"),
)

#: The formats of Airflow's own commands.
_OUTPUT = Arg(ARG_OUTPUT.flags, **{**ARG_OUTPUT.kwargs, "default": None, "help": "Output format (default: sentences)"})

_CHANGE = (ARG_YES, _OUTPUT)
_CONN_ID = Arg(("--conn-id",), help="Connection of the service", default="outbound_transfer_default")
_TO = Arg(("--to",), help="New cursor", type=int, required=True)
_DIALECT = Arg(("--dialect",), help="Database: duckdb, mysql, postgresql or sqlite (default: that of the connection)")
_APPLY = Arg(("--apply",), help="Create the views, or replace them", action="store_true")
_TRANSFER_ID = Arg(("--transfer-id",), help="Id of the transfer", required=True)
_EMAIL = Arg(("--email",), help="The person's address", required=True)
_OLDER_THAN = Arg(("--older-than",), help="Days, such as 90d", type=parse_days, required=True, metavar="DAYS")
_DRY_RUN = Arg(("--dry-run",), help="Only count the rows", action="store_true")

_CHECK_HELP = """\
Check the connection and both keys, the clock, the deliveries database and the warehouse, whether tasks use the same
deliveries table, the triggerers, the feed's cursor, and deliveries in doubt. Changes nothing, except that it creates
the deliveries table if there is none, and tests it with a row that it deletes. Calls the service twice, once with each
key: the feed with an invalid cursor, which does not use up its one request a minute.

Exit status: 0 if everything is ok, 1 if something is degraded or unknown, 2 if something is broken.
"""


def get_commands() -> list[GroupCommand]:
    """Return the commands that this provider adds to ``airflow``."""
    feed = (
        _command("status", "Show the cursor, the last poll, and counts of rows", *_WAREHOUSE, ARG_OUTPUT),
        _command("verify", "Check order, duplicates, the cursor and the poll log", *_WAREHOUSE, _OUTPUT),
        _command("rebuild_cursor", "Set the cursor to the newest page, which is read again", *_WAREHOUSE, *_CHANGE),
        _command("reset", "Set the cursor", *_WAREHOUSE, _TO, *_CHANGE),
    )
    deliveries = (
        _command("forget", "Let a transfer's task, once it is cleared, send it again", _TRANSFER_ID, *_CHANGE),
        _command("clean", "Delete old deliveries", _OLDER_THAN, *_CHANGE),
    )
    privacy = (
        _command("export", "Print it as JSON, without other people's addresses", *_TABLES, _EMAIL),
        _command("erase", "Erase it", *_TABLES, _EMAIL, _DRY_RUN, *_CHANGE),
    )
    run_check = lazy_load_command("outbound_transfer.cli.check.check")
    of_check = (_CONN_ID, *_WAREHOUSE, ARG_OUTPUT)
    to_view = "Print the SQL of the analysts' views, or create them"
    to_retain = "Delete old events and polls, and the recipients of old transfers"
    subcommands = (
        ActionCommand("check", "Check that everything works, and change nothing", run_check, of_check, _CHECK_HELP),
        GroupCommand("feed", "Inspect and repair the event feed where it is loaded", feed),
        _command("views", to_view, _DIALECT, *_TABLES, _APPLY, _OUTPUT),
        GroupCommand("deliveries", "Maintain the table that stores what deliveries have sent", deliveries),
        GroupCommand("privacy", "Export or erase a person's data in the tables, in all accounts", privacy),
        _command("retention", to_retain, *_TABLES, _OLDER_THAN, _DRY_RUN, *_CHANGE),
    )
    return [GroupCommand("outbound-transfer", "Outbound Transfer Service", subcommands)]


def _command(function: str, text: str, *arguments: Arg) -> ActionCommand:
    run = lazy_load_command(f"outbound_transfer.cli.commands.{function}")
    return ActionCommand(function.replace("_", "-"), text, run, arguments)


def main(words: Sequence[str] | None = None) -> None:
    """Run the script ``outbound-transfer``: before 3.2, Airflow does not add a provider's commands to its own.

    :param words: the command line; that of the process if None.
    """
    (command,) = get_commands()
    parser = ArgumentParser(prog=command.name, description=command.help)
    _add_commands(parser, command)
    arguments = parser.parse_args(words)
    arguments.func(arguments)


def _add_commands(parser: ArgumentParser, command: ActionCommand | GroupCommand) -> None:
    if isinstance(command, GroupCommand):
        subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
        for each in command.subcommands:
            text = each.description or each.help
            _add_commands(subparsers.add_parser(each.name, help=each.help, description=text), each)
    else:
        for argument in command.args:
            argument.add_to_parser(parser)
        parser.set_defaults(func=command.func)
