"""What DAGs may import. The packages' own rules are contracts in pyproject.toml, which ``make check`` keeps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.repository import REPOSITORY

DAGS = REPOSITORY / "dags"
SHIPPED = REPOSITORY / "plugins"


def imported(file: Path) -> Iterator[str]:
    """Every imported name of a file, those inside functions and those for type checking included."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("file", sorted(DAGS.glob("*.py")), ids=lambda file: file.stem)
def test_a_dag_imports_public_names_of_the_provider_and_not_the_sandbox(file: Path) -> None:
    names = [name for name in imported(file) if not name.startswith("__future__")]
    assert [name for name in names if name.startswith("outbound_transfer_sandbox")] == []
    assert [name for name in names if any(part.startswith("_") for part in name.split("."))] == []
    assert [name for name in names if name.startswith("outbound_transfer.protocol")] == [], "exceptions has the errors"


@pytest.mark.parametrize("file", sorted(SHIPPED.rglob("*.py")), ids=lambda file: str(file.relative_to(SHIPPED)))
def test_what_is_shipped_imports_no_tests(file: Path) -> None:
    assert [name for name in imported(file) if name.split(".")[0] in ("tests", "pytest", "hypothesis")] == []
