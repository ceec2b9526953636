"""The command ``outbound-transfer``: its subcommands and arguments, without the modules that run them."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import timedelta

from airflow.cli.cli_config import ARG_OUTPUT, ARG_YES, ActionCommand, Arg, GroupCommand, lazy_load_command


def parse_days(text: str) -> timedelta:
    """Parse a number of days, for example ``90d``.

    :raises ArgumentTypeError: it is not one, or less than a day.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,4}d", text):
        raise ArgumentTypeError(f"'{text}' is not a number of days, such as 90d")
    return timedelta(days=int(text[:-1]))


#: The tables of a SQL database. Without an account: a person is one in all of them.
_TABLES = (
    Arg(("--sql-conn-id",), help="Connection of the warehouse, if the feed is in a SQL database"),
    Arg(("--table-prefix",), help="Prefix of its tables' names", default="outbound_transfer_"),
    Arg(("--schema",), help="Schema of its tables (default: the connection's own)"),
)
_WAREHOUSE = (
    *_TABLES,
    Arg(("--iceberg-conn-id",), help="Connection of the catalog, if the feed is in an Iceberg table"),
    Arg(("--table",), help="Namespace and table of Iceberg, such as lake.outbound_transfer_events"),
    Arg(("--account",), help="Account of the feed; required if there are several"),
)

#: The formats of Airflow's own commands. Without one, a command that repairs something prints sentences.
_OUTPUT = Arg(ARG_OUTPUT.flags, **{**ARG_OUTPUT.kwargs, "default": None, "help": "Output format (default: sentences)"})

_CHANGE = (ARG_YES, _OUTPUT)
_EMAIL = Arg(("--email",), help="The person's address", required=True)
_OLDER_THAN = Arg(("--older-than",), help="Days, such as 90d", type=parse_days, required=True, metavar="DAYS")
_DRY_RUN = Arg(("--dry-run",), help="Only count the rows", action="store_true")

_CHECK_HELP = """\
Check the connection and both keys, the clock, the databases of deliveries and warehouse, whether tasks use the same
table of deliveries, who polls, the feed's cursor, and what is in doubt. Changes nothing, but makes the table of
deliveries if there is none, and tries it with a row that it deletes. Calls the service twice: one of the transfer key's
calls of the minute; and the feed with an invalid cursor, which does not use up its one request a minute. That such a
request is refused for its cursor, and not for its key, is taken for a valid key.

Rows have check, status (ok, degraded, broken, unknown), found and to_do.
Exit status: 0 if all is ok, 1 if something is degraded or unknown, 2 if something is broken.
"""


def get_commands() -> list[GroupCommand]:
    """Return the commands that this provider adds to ``airflow``."""
    conn_id = Arg(("--conn-id",), help="Connection of the service", default="outbound_transfer_default")
    to_check, run_check = "Check that everything works, and change nothing", "outbound_transfer.cli.check.check"
    of_check = (conn_id, *_WAREHOUSE, ARG_OUTPUT)
    check = ActionCommand("check", to_check, lazy_load_command(run_check), of_check, _CHECK_HELP)
    feed = (
        _feed("status", "Show the cursor, the last poll, and counts of events and rejected lines", ARG_OUTPUT),
        _feed("verify", "Check order, duplicates, and the cursor against the rows and the log of polls", _OUTPUT),
        _feed("rebuild_cursor", "Set the cursor to the newest page, which is then read once more", *_CHANGE),
        _feed("reset", "Set the cursor", Arg(("--to",), help="New cursor", type=int, required=True), *_CHANGE),
    )
    dialect = Arg(
        ("--dialect",), help="Database: duckdb, mysql, postgresql or sqlite (default: that of the connection)"
    )
    apply = Arg(("--apply",), help="Create the views, or replace them", action="store_true")
    to_views = "Print the SQL of the analysts' views, or create them"
    transfer_id = Arg(("--transfer-id",), help="The transfer", required=True)
    to_forget = "Forget a transfer, so that its task, once it is cleared, sends it again"
    deliveries = (
        _command("commands.forget", to_forget, transfer_id, *_CHANGE),
        _command("commands.clean", "Delete old deliveries of tasks", _OLDER_THAN, *_CHANGE),
    )
    privacy = (
        _command("privacy.export", "Print it as JSON, without the addresses of others", *_TABLES, _EMAIL),
        _command("privacy.erase", "Erase it", *_TABLES, _EMAIL, _DRY_RUN, *_CHANGE),
    )
    to_retain = "Delete old events and polls, and the people of old transfers, from a SQL database"
    subcommands = (
        check,
        GroupCommand("feed", "Inspect and repair the event feed where it is loaded", feed),
        _command("commands.views", to_views, dialect, *_TABLES, apply, _OUTPUT),
        GroupCommand("deliveries", "The table in which deliveries remember what they have sent", deliveries),
        GroupCommand("privacy", "What the tables have of a person, in all accounts", privacy),
        _command("privacy.retention", to_retain, *_TABLES, _OLDER_THAN, _DRY_RUN, *_CHANGE),
    )
    return [GroupCommand("outbound-transfer", "Outbound Transfer Service", subcommands)]


def _feed(function: str, text: str, *arguments: Arg) -> ActionCommand:
    return _command(f"commands.{function}", text, *_WAREHOUSE, *arguments)


def _command(function: str, text: str, *arguments: Arg) -> ActionCommand:
    """Return a command with the name of its function."""
    name = function.rpartition(".")[2].replace("_", "-")
    return ActionCommand(name, text, lazy_load_command(f"outbound_transfer.cli.{function}"), arguments)
