"""The command line of ``outbound-transfer-warehouse-check``."""

from __future__ import annotations

import signal
import sys
import uuid
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from outbound_transfer.airflow_compat.connections import with_parsed_extra
from outbound_transfer.airflow_compat.names import BaseHook
from outbound_transfer.cli.commands import with_connections
from outbound_transfer.cli.warehouse_check.check import Finding, WarehouseCheck
from outbound_transfer.cli.warehouse_check.processes import ProcessFailed
from outbound_transfer.warehouse.connection import open_warehouse
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.dialects.refused import check_names
from outbound_transfer.warehouse.errors import WarehouseError

_DESCRIPTION: Final = """\
Check that a database loses and doubles nothing: an ingestion of a small feed is killed (SIGKILL) before, during and
after steps all over it and run again, and several readers race for the same pages. This needs an Airflow connection,
and a role that may create tables in the schema. The tables have a prefix of their own and are dropped at the end.
Exit code 1: something was lost, doubled or left half done, or the database is refused."""


def main(words: Sequence[str] | None = None) -> None:
    """Check a warehouse.

    :param words: the command line; that of the process if None.
    """
    arguments = _parse(words)
    signal.signal(signal.SIGTERM, _stop)
    _check(arguments)


def _parse(words: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(prog="outbound-transfer-warehouse-check", description=_DESCRIPTION)
    parser.add_argument("--sql-conn-id", required=True, help="connection of the warehouse")
    parser.add_argument("--schema", help="existing schema for the tables (default: the connection's own)")
    parser.add_argument("--kills", type=_parse_count, default=30, help="number of kills (default: 30)")
    parser.add_argument("--readers", type=_parse_count, default=4, help="number of readers in a race (default: 4)")
    return parser.parse_args(words)


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) <= 10_000):
        raise ArgumentTypeError(f"'{text}' is not a whole number from 1 to 10000")
    return int(text)


def _stop(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


@with_connections
def _check(arguments: Namespace) -> None:
    warehouse = _open(arguments.sql_conn_id, arguments.schema)
    _print(f"The tables of this check start with {warehouse.prefix}")
    try:
        findings = WarehouseCheck(warehouse, _print).run(arguments.kills, arguments.readers)
    except ProcessFailed as error:
        raise SystemExit(f"The check could not be made: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("Interrupted.") from None
    _report(findings)


def _open(conn_id: str, schema: str | None) -> Warehouse:
    prefix = f"outbound_transfer_check_{uuid.uuid4().hex[:8]}_"
    try:
        # Looked up once: the processes of the check must not share a connection to Airflow's database.
        connection = with_parsed_extra(BaseHook.get_connection(conn_id))
        check_names([connection.conn_type])  # before its provider, which may be missing
        return open_warehouse(conn_id, prefix=prefix, schema=schema, connection=connection)
    except WarehouseError:
        raise
    except Exception as error:
        raise SystemExit(f"connection '{conn_id}' cannot be used: {error}") from error


def _report(findings: Sequence[Finding]) -> None:
    _print(f"\n{'check':<22} {'runs':>5} {'wrong':>6}")
    for finding in findings:
        _print(f"{finding.name:<22} {finding.runs:>5} {len(finding.wrong):>6}")
    if wrong := [f"{finding.name}: {each}" for finding in findings for each in finding.wrong]:
        raise SystemExit(
            "\n".join(("", *wrong, "This database loses or doubles events: do not load the feed into it."))
        )
    _print("\nNothing was lost, doubled or left half done.")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
