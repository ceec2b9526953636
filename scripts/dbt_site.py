"""Write dbt's documentation of the package in include/dbt as one HTML file, for the site (`make docs`)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from docs_site import DBT_DOCS

from e2e.dbt.project import Project
from outbound_transfer.store.tables import Tables
from support import sample_rows
from support.warehouses import duckdb_hook

COMMANDS: Final = ("deps", "run", "docs generate --static")


def main() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "warehouse.duckdb"
        sample_rows.make_tables(Tables(duckdb_hook(file)))
        target = {"type": "duckdb", "path": str(file), "schema": "analytics"}
        project = Project(Path(folder), target, {"outbound_transfer_schema": "main"})
        for command, outcome in zip(COMMANDS, project.run(*COMMANDS), strict=True):
            if not outcome.success:
                sys.exit(f"dbt {command} failed: {outcome.error or outcome.statuses}")
        DBT_DOCS.parent.mkdir(exist_ok=True)
        shutil.copyfile(Path(folder) / "target/static_index.html", DBT_DOCS)


if __name__ == "__main__":
    main()
