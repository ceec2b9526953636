"""Run dbt commands in one process, which spares most of their time; the interpreter of dbt's environment runs this.

The arguments are a JSON list of commands, and the file for their outcomes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dbt.cli.main import dbtRunner


def outcome_of(command: list[str], runner: dbtRunner) -> dict[str, Any]:
    done = runner.invoke(command)
    results = getattr(done.result, "results", None) or []
    statuses = {result.node.unique_id: str(result.status) for result in results}
    return {"success": done.success, "statuses": statuses, "error": str(done.exception or "")}


if __name__ == "__main__":
    commands, file = sys.argv[1:]
    runner = dbtRunner()
    Path(file).write_text(json.dumps([outcome_of(command, runner) for command in json.loads(commands)]))
