"""The command ``outbound-transfer``: its subcommands and arguments, without the modules that run them."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import timedelta

from airflow.cli.cli_config import ARG_OUTPUT, ARG_YES, ActionCommand, Arg, GroupCommand, lazy_load_command

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


def parse_days(text: str) -> timedelta:
    """Parse a number of days, for example ``90d``.

    :raises ArgumentTypeError: it is not one, or less than a day.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,4}d", text):
        raise ArgumentTypeError(f"'{text}' is not a number of days, such as 90d")
    return timedelta(days=int(text[:-1]))


#: The formats of Airflow's own commands. Without one, a command that repairs something prints sentences.
_OUTPUT = Arg(ARG_OUTPUT.flags, **{**ARG_OUTPUT.kwargs, "default": None, "help": "Output format (default: sentences)"})

_CHECK_HELP = """\
Check the connection and both keys, the clock, the databases of deliveries and warehouse, who polls, the feed's cursor,
and what is in doubt. Changes nothing, but makes the table of deliveries if there is none, and tries it with a row that
it deletes. Calls the service twice: one of the transfer key's calls of the minute;
and the feed with an invalid cursor, which does not use up its one request a minute. That such a request is refused for
its cursor, and not for its key, is taken for a valid key.

Rows have check, status (ok, degraded, broken, unknown), found and to_do.
Exit status: 0 if all is ok, 1 if something is degraded or unknown, 2 if something is broken.
"""

_OLDER_THAN = Arg(
    ("--older-than",), help="Days since the last change, such as 90d", type=parse_days, required=True, metavar="DAYS"
)


_EMAIL = Arg(("--email",), help="The person's address", required=True)
_DRY_RUN = Arg(("--dry-run",), help="Only count the rows", action="store_true")


def get_commands() -> list[GroupCommand]:
    """Return the commands that this provider adds to ``airflow``."""
    feed = GroupCommand(
        name="feed",
        help="Inspect and repair the event feed where it is loaded",
        subcommands=(
            _feed_command(
                "status", "Show the cursor, the last poll, and counts of events and rejected lines", ARG_OUTPUT
            ),
            _feed_command(
                "verify", "Check order, duplicates, and the cursor against the rows and the log of polls", _OUTPUT
            ),
            _feed_command(
                "rebuild-cursor", "Set the cursor to the newest page, which is then read once more", ARG_YES, _OUTPUT
            ),
            _feed_command(
                "reset", "Set the cursor", Arg(("--to",), help="New cursor", type=int, required=True), ARG_YES, _OUTPUT
            ),
        ),
    )
    views = _command(
        "views",
        "views",
        "Print the SQL of the analysts' views, or create them",
        Arg(("--dialect",), help="Database: duckdb, mysql, postgresql or sqlite (default: that of the connection)"),
        *_TABLES,
        Arg(("--apply",), help="Create the views, or replace them", action="store_true"),
        _OUTPUT,
    )
    deliveries = GroupCommand(
        name="deliveries",
        help="The table in which deliveries remember what they have sent",
        subcommands=(
            _command(
                "forget_delivery",
                "forget",
                "Forget a transfer, so that its task, once it is cleared, sends it again",
                Arg(("--transfer-id",), help="The transfer", required=True),
                ARG_YES,
                _OUTPUT,
            ),
            _command("clean_deliveries", "clean", "Delete old deliveries of tasks", _OLDER_THAN, ARG_YES, _OUTPUT),
        ),
    )
    check = ActionCommand(
        name="check",
        help="Check that everything works, and change nothing",
        description=_CHECK_HELP,
        func=lazy_load_command("outbound_transfer.cli.check.check"),
        args=(
            Arg(("--conn-id",), help="Connection of the service", default="outbound_transfer_default"),
            *_WAREHOUSE,
            ARG_OUTPUT,
        ),
    )
    privacy = GroupCommand(
        name="privacy",
        help="What the tables have of a person, in all accounts",
        subcommands=(
            _command(
                "export",
                "export",
                "Print it as JSON, without the addresses of others",
                *_TABLES,
                _EMAIL,
                module="privacy",
            ),
            _command("erase", "erase", "Erase it", *_TABLES, _EMAIL, _DRY_RUN, ARG_YES, _OUTPUT, module="privacy"),
        ),
    )
    retention = _command(
        "retention",
        "retention",
        "Delete old events and polls, and the people of old transfers, from a SQL database",
        *_TABLES,
        Arg(("--older-than",), help="Days, such as 365d", type=parse_days, required=True, metavar="DAYS"),
        _DRY_RUN,
        ARG_YES,
        _OUTPUT,
        module="privacy",
    )
    subcommands = (check, feed, views, deliveries, privacy, retention)
    return [GroupCommand(name="outbound-transfer", help="Outbound Transfer Service", subcommands=subcommands)]


def _feed_command(name: str, text: str, *arguments: Arg) -> ActionCommand:
    return _command(name.replace("-", "_"), name, text, *_WAREHOUSE, *arguments)


def _command(function: str, name: str, text: str, *arguments: Arg, module: str = "commands") -> ActionCommand:
    run = lazy_load_command(f"outbound_transfer.cli.{module}.{function}")
    return ActionCommand(name=name, help=text, func=run, args=arguments)
