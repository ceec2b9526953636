"""dbt in an environment of its own, and a project that has installed the package of ``include/dbt``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.environments import make_environment, run_uv
from support.repository import REPOSITORY

PACKAGE: Final = REPOSITORY / "include/dbt"
REQUIREMENTS: Final = REPOSITORY / "constraints/dbt.txt"


@dataclass(frozen=True)
class Outcome:
    """What became of a command: whether it succeeded, and the status of each node by its unique id."""

    success: bool
    statuses: dict[str, str]
    error: str

    def named(self, status: str) -> set[str]:
        return {_name(node) for node, each in self.statuses.items() if each == status}


@dataclass(frozen=True)
class Project:
    """An analyst's project, in a folder of its own; ``target`` is the database, as in ``profiles.yml``."""

    folder: Path
    target: dict[str, Any]
    variables: dict[str, Any] = field(default_factory=dict)

    def run(self, *commands: str) -> list[Outcome]:
        self._write()
        outcomes = self.folder / "outcomes.json"
        outcomes.unlink(missing_ok=True)
        script = Path(__file__).with_name("commands.py")
        off = dict.fromkeys(("DBT_SEND_ANONYMOUS_USAGE_STATS", "DBT_VERSION_CHECK", "DBT_USE_COLORS"), "false")
        env = os.environ | off | {"DBT_PROFILES_DIR": str(self.folder)}
        command = (dbt_python(), "-I", script, json.dumps([command.split() for command in commands]), outcomes)
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return [Outcome(**outcome) for outcome in json.loads(outcomes.read_text())]

    def compiled(self) -> dict[str, str]:
        folder = self.folder / "target/compiled/outbound_transfer/models"
        return {file.stem: file.read_text() for file in folder.rglob("*.sql")}

    def artifact(self, name: str) -> Any:
        return json.loads((self.folder / f"target/{name}.json").read_text())

    def _write(self) -> None:
        # YAML reads JSON.
        files = {
            "dbt_project.yml": {
                "name": "analysts",
                "profile": "warehouse",
                "vars": {"outbound_transfer": self.variables},
            },
            "packages.yml": {"packages": [{"local": str(PACKAGE)}]},
            "profiles.yml": {"warehouse": {"target": "it", "outputs": {"it": {"threads": 1, **self.target}}}},
        }
        for name, content in files.items():
            (self.folder / name).write_text(json.dumps(content))


def _name(node: str) -> str:
    kind, _, *names = node.split(".")
    return names[1] if kind in {"source", "unit_test"} else names[0]


def dbt_python() -> Path:
    """The interpreter of dbt's environment, which is made where it is missing."""

    def install(interpreter: Path) -> None:
        run_uv("pip", "install", "--python", interpreter, "--link-mode", "hardlink", "--requirement", REQUIREMENTS)

    return make_environment("dbt", Path(sys.executable), (REQUIREMENTS,), install)
