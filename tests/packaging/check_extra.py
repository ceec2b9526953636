"""Played by the interpreter of a clean environment that holds the wheel with one extra, and what both require:
``python -I check_extra.py EXTRA FOLDER``. Does what the extra is for; connections come from the environment."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

BIN = Path(sys.prefix) / "bin"

HEAD = """
from airflow.sdk import DAG
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.event_feed_to_iceberg import EventFeedToIcebergOperator
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.sql_to_outbound_transfer import SqlToOutboundTransferOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator

NEW = {"subject": "Report", "recipients": ["ann@example.com"]}
REPORT = {"name": "report.csv", "content": "a,b"}

with DAG("extra", schedule=None):
"""

#: Loads events and transfers twice, as the second time reads what the first has stored, and delivers them.
WAREHOUSE = """
    first, events, transfers, again = (
        DeliverFilesOperator(task_id="first", files=REPORT, **NEW),
        EventFeedToSqlOperator(task_id="events", sql_conn_id="warehouse"),
        TransfersToSqlOperator(task_id="transfers", sql_conn_id="warehouse"),
        TransfersToSqlOperator(task_id="again", sql_conn_id="warehouse"),
    )
    first >> events >> transfers >> again >> SqlToOutboundTransferOperator(
        task_id="result",
        sql_conn_id="warehouse",
        sql="SELECT * FROM outbound_transfer_transfers",
        file_name="transfers.csv",
        **NEW,
    )
"""

DELIVER = '    first = DeliverFilesOperator(task_id="first", files={files}, {more}**NEW)\n'


def run_dag(folder: Path, body: str) -> None:
    (folder / "dags/extra.py").write_text(HEAD + body)
    done = subprocess.run([BIN / "airflow", "dags", "test", "extra"], capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    error = "\n".join(re.findall(r"^[\w.]+: .+$", told, re.MULTILINE)) or told  # the last line of each traceback
    assert done.returncode == 0, error
    assert "state=success" in told, error


def check_warehouse(folder: Path) -> None:
    run_dag(folder, WAREHOUSE)


def check_iceberg(folder: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    SqlCatalog("lake", **json.loads(os.environ["AIRFLOW_CONN_LAKE"])["extra"]).create_namespace("lake")
    events = 'EventFeedToIcebergOperator(task_id="events", iceberg_conn_id="lake", table="lake.events")'
    run_dag(folder, DELIVER.format(files="REPORT", more="") + f"    first >> {events}\n")


def check_parquet(folder: Path) -> None:  # as for XLSX
    _write("rows.parquet")


def check_xlsx(folder: Path) -> None:  # nothing to run: it needs a database beside the extra
    _write("rows.xlsx")


def _write(name: str) -> None:
    from outbound_transfer.queries.export import write_result
    from outbound_transfer.queries.spec import format_of
    from outbound_transfer.queries.values import Result

    file = io.BytesIO()
    write_result(Result(["id", "name"], [[[1, 2], ["Ann", None]]]), format_of(name, None), file)
    assert len(file.getvalue()) > 100


def check_s3(folder: Path) -> None:
    run_dag(folder, DELIVER.format(files='"s3://aws_default@extras/report.csv"', more=""))


def check_sftp(folder: Path) -> None:
    run_dag(folder, DELIVER.format(files='"sftp://sftp_default@/upload/*.csv"', more=""))


def check_azure(folder: Path) -> None:
    """Deliver a blob; of SharePoint and OneDrive, the file system is there."""
    from airflow.sdk import ObjectStoragePath

    run_dag(folder, DELIVER.format(files='"abfs://wasb_default@extras/*.csv"', more=""))
    assert type(ObjectStoragePath("msgd://msgraph_default@site/drive/a").fs).__name__ == "MSGDriveFS"


def check_gcs(folder: Path) -> None:
    """As far as without Google: the file system is there, and it is the network that fails."""
    from outbound_transfer.client.errors import SourceUnreadable
    from outbound_transfer.files.content import Spool
    from outbound_transfer.files.find import parse_files, resolve_files

    try:
        with Spool() as spool:
            resolve_files(parse_files("gs://google_cloud_default@bucket/report.csv"), spool, [])
    except SourceUnreadable as error:
        assert "extra" not in str(error), error
        assert "filesystem" not in str(error), error
    else:
        raise AssertionError("a bucket behind a closed port was read")


def check_notifier(kind: str, folder: Path) -> None:
    module, name, more = {
        "slack": ("slack", "TransferSlackNotifier", ""),
        "smtp": ("smtp", "TransferSmtpNotifier", 'to="ops@example.com", from_email="airflow@example.com"'),
    }[kind]
    notifier = f"__import__('outbound_transfer.notifications.{module}', fromlist=['{name}']).{name}({more})"
    run_dag(folder, DELIVER.format(files="REPORT", more=f"on_success_callback={notifier}, "))


def check_openlineage(folder: Path) -> None:
    from outbound_transfer.operators.openlineage import dataset_of

    assert dataset_of("s3://bucket/a.csv").namespace == "s3://bucket"
    run_dag(folder, DELIVER.format(files="REPORT", more=""))


def check_celery(folder: Path) -> None:
    from airflow.providers.celery.executors.celery_executor import CeleryExecutor

    assert CeleryExecutor
    run_dag(folder, DELIVER.format(files="REPORT", more=""))


def check_sandbox(folder: Path) -> None:
    from outbound_transfer_sandbox.testing import running_sandbox

    async def main() -> None:
        with running_sandbox() as sandbox:
            assert sandbox.sent() == []

    asyncio.run(main())


CHECKS: dict[str, Callable[[Path], None]] = {
    **dict.fromkeys(("sqlite", "postgres", "duckdb", "mysql"), check_warehouse),
    "iceberg": check_iceberg,
    "parquet": check_parquet,
    "xlsx": check_xlsx,
    "s3": check_s3,
    "gcs": check_gcs,
    "azure": check_azure,
    "sftp": check_sftp,
    "slack": lambda folder: check_notifier("slack", folder),
    "smtp": lambda folder: check_notifier("smtp", folder),
    "openlineage": check_openlineage,
    "celery": check_celery,
    "sandbox": check_sandbox,
}


def main() -> None:
    extra, folder = sys.argv[1], Path(sys.argv[2])
    assert extra in CHECKS, f"no check says what the extra {extra} is for"
    assert importlib.util.find_spec("editables") is None, "the tools of the tests are installed, too"
    if not (folder / "airflow.cfg").exists():
        (folder / "dags").mkdir(exist_ok=True)
        subprocess.run([BIN / "airflow", "db", "migrate"], capture_output=True, check=True)
    CHECKS[extra](folder)


if __name__ == "__main__":
    os.environ |= {
        "AIRFLOW_HOME": sys.argv[2],
        "AIRFLOW__CORE__DAGS_FOLDER": f"{sys.argv[2]}/dags",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    main()
