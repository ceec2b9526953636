"""The backup of docker-compose.yaml, and its restore as docs/upgrading.md says, with a real PostgreSQL."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser

from e2e.cluster.cluster import FILES, variables
from e2e.cluster.compose import read
from e2e.cluster.native import Container, containers, lay_out
from outbound_transfer_sandbox.testing import Sandbox
from support import memory
from support.deliveries import billed
from support.keyed_tasks import keyed_task
from support.postgres import Database
from support.repository import REPOSITORY
from support.tasks import SimulatedClock
from support.timeouts import eventually

DATABASES = ("airflow", "warehouse")
PAGE = (REPOSITORY / "docs/upgrading.md").read_text()


@pytest.fixture
def backup(tmp_path: Path, postgres: Database) -> Container:
    """The container of the service, whose two databases are one here."""
    values = variables(tmp_path / "outbox") | {"BACKUPS_DIR": str(tmp_path / "backups"), "BACKUPS_KEPT": "2"}
    container = containers(read([FILES[0].read_text()], values), tmp_path)["backup"][0]
    lay_out(container, tmp_path)
    return container


def environment(backup: Container, postgres: Database) -> dict[str, str]:
    url = f"postgresql://postgres@/{postgres.name}?host={postgres.host}"
    return backup.environment(iter(())) | {f"{database.upper()}_URL": url for database in DATABASES}


@contextmanager
def running(backup: Container, postgres: Database) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(backup.command(), env=environment(backup, postgres), start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def is_healthy(backup: Container, postgres: Database) -> bool:
    return subprocess.run(backup.check(), env=environment(backup, postgres), check=False).returncode == 0


def make_backup(backup: Container, postgres: Database) -> None:
    with running(backup, postgres):
        eventually(lambda: is_healthy(backup, postgres), interval=0.1)


def restore(backup: Container, postgres: Database) -> None:
    """Run the page's commands that are about the databases, in their order."""
    renaming = re.findall(r"psql .*--dbname=(\w+) --command='(.*)' --command='(.*)'", PAGE)
    (script,) = re.findall(r"backup bash -c '(.*)'", PAGE)
    (file,) = backup.path("/backups").glob("warehouse-*.dump")
    script = re.sub(r"/backups/warehouse-.*\.dump", str(file), script)
    for database, *statements in renaming:
        with closing(Database(postgres.host, database).connect(autocommit=True)) as connection:
            for statement in statements:
                connection.execute(
                    statement.replace("warehouse", postgres.name).replace("before", f"{postgres.name}_before")
                )
    subprocess.run(["bash", "-c", script], env=environment(backup, postgres), check=True)


@pytest.fixture
def deliver(
    connection: str, sandbox: Sandbox, postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Deliver in a new run under the same delivery key, and return the transfer's id."""
    memory.keep_keys_in(monkeypatch, postgres.airflow_connection)
    (tmp_path / "report.csv").write_bytes(b"content")
    airflow: dict[Any, str] = {}

    def run(run_id: str) -> str:
        task = keyed_task(run_id, SimulatedClock(sandbox), airflow=airflow, files=[str(tmp_path / "report.csv")])
        return str(task.run()["id"])

    return run


def test_a_restored_warehouse_remembers_what_was_sent_under_a_key(
    backup: Container, postgres: Database, deliver: Any, sandbox: Sandbox
) -> None:
    sent = deliver("first")
    make_backup(backup, postgres)
    with closing(postgres.connect(autocommit=True)) as connection:
        connection.execute("DELETE FROM outbound_transfer_deliveries")
        connection.execute("CREATE VIEW analysis AS SELECT * FROM outbound_transfer_deliveries")
        connection.execute("CREATE TABLE of_a_later_version (a int)")

    restore(backup, postgres)

    assert deliver("second") == sent
    assert list(billed(sandbox)) == [sent]
    with closing(postgres.connect()) as connection:
        assert connection.execute("SELECT to_regclass('of_a_later_version')").fetchone() == (None,)


def test_the_restore_pauses_all_dags_before_a_scheduler_runs() -> None:
    *_, pause, start = re.findall(r"^docker compose (.*)$", PAGE, re.MULTILINE)
    command = pause.removeprefix("run --rm scheduler ")
    arguments = cli_parser.get_parser().parse_args(shlex.split(command))
    assert (arguments.func.__name__, arguments.dag_id, arguments.yes) == ("dag_pause", ".*", True)
    assert arguments.treat_dag_id_as_regex
    assert start == "up --detach --wait"


def test_a_start_does_not_replace_the_backup_of_the_day(backup: Container, postgres: Database) -> None:
    with closing(postgres.connect(autocommit=True)) as connection:
        connection.execute("CREATE TABLE remembered (a int)")
        make_backup(backup, postgres)
        (made,) = backup.path("/backups").glob("warehouse-*.dump")
        before = made.read_bytes()
        connection.execute("DROP TABLE remembered")  # as on a new, empty volume
    with running(backup, postgres) as process, suppress(subprocess.TimeoutExpired):
        process.wait(3)
    assert made.read_bytes() == before


@pytest.fixture
def old(backup: Container) -> Path:
    """The folder of backups, with four old ones of each database."""
    folder = backup.path("/backups")
    for database in DATABASES:
        for day in range(1, 5):
            file = folder / f"{database}-2026-01-0{day}.dump"
            file.touch()
            os.utime(file, (0, 0))
    return folder


def test_the_newest_are_kept_and_nobody_else_may_read_them(backup: Container, postgres: Database, old: Path) -> None:
    with running(backup, postgres):  # it is healthy before it removes old ones
        eventually(lambda: all(len(list(old.glob(f"{database}-*"))) == 2 for database in DATABASES), interval=0.1)
    for database in DATABASES:
        oldest, newest = sorted(old.glob(f"{database}-*"))
        assert oldest.name == f"{database}-2026-01-04.dump"
        assert newest.read_bytes().startswith(b"PGDMP")
        assert newest.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kept", ["2", "0"])
def test_a_backup_just_made_is_never_removed(backup: Container, postgres: Database, old: Path, kept: str) -> None:
    for day in range(1, 4):  # by a clock that was wrong
        (old / f"warehouse-2099-01-0{day}.dump").touch()
    values = environment(backup, postgres) | {"BACKUPS_KEPT": kept}
    with subprocess.Popen(backup.command(), env=values, start_new_session=True) as process:
        eventually(lambda: len(list(old.glob("warehouse-*"))) <= 2, interval=0.1)
        os.killpg(process.pid, 9)
    assert [file for file in old.glob("warehouse-*.dump") if file.stat().st_size]


def test_a_backup_that_fails_removes_nothing_and_is_seen(backup: Container, postgres: Database, old: Path) -> None:
    wrong = environment(backup, postgres) | {"WAREHOUSE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    assert subprocess.run(backup.command(), env=wrong, capture_output=True, check=False).returncode != 0
    assert len(list(old.glob("warehouse-*.dump"))) == 4
    assert not is_healthy(backup, postgres)


def test_a_partial_file_left_by_a_killed_backup_is_removed(backup: Container, postgres: Database, old: Path) -> None:
    (old / "warehouse-2026-01-04.dump.part").touch()
    make_backup(backup, postgres)
    assert list(old.glob("*.part")) == []


def test_no_password_is_among_the_arguments_of_a_process(backup: Container, tmp_path: Path) -> None:
    program = backup.root / "bin/pg_dump"
    program.write_text(f'#!/bin/sh\necho "$@ $PGPASSWORD" >> {tmp_path}/seen; touch "${{2#--file=}}"\n')
    program.chmod(0o700)
    values = backup.environment(iter(()))
    with subprocess.Popen(backup.command(), env=values, start_new_session=True) as process:
        eventually(lambda: (tmp_path / "seen").exists() and len((tmp_path / "seen").read_text().splitlines()) == 2)
        os.killpg(process.pid, 9)
    for database, line in zip(DATABASES, (tmp_path / "seen").read_text().splitlines(), strict=True):
        *arguments, password = line.split()
        assert password == values[f"{database.upper()}_PASSWORD"]
        assert password not in " ".join(arguments)
