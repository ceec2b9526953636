"""What Dags may import. The packages' own rules are contracts in pyproject.toml, which ``make check`` keeps."""

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
    assert [name for name in names if name.startswith("outbound_transfer.client.errors")] == [], (
        "exceptions has the errors"
    )


@pytest.mark.parametrize("file", sorted(SHIPPED.rglob("*.py")), ids=lambda file: str(file.relative_to(SHIPPED)))
def test_a_shipped_module_imports_no_tests(file: Path) -> None:
    assert [name for name in imported(file) if name.split(".")[0] in ("tests", "pytest", "hypothesis")] == []


PROVIDER = SHIPPED / "outbound_transfer"

#: Who needs whom is to be a short list for each package.
MAX_ARROWS = 90


def needed(file: Path) -> Iterator[str]:
    """The provider's packages that a file imports from, those for type checking alone excluded."""
    tree = ast.parse(file.read_text(), str(file))
    typing_only = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in typing_only:
            root, _, rest = node.module.partition(".")
            if root == "outbound_transfer" and rest:
                yield rest.partition(".")[0]


def test_the_packages_of_the_provider_need_few_others() -> None:
    packages = {file.parent.name for file in PROVIDER.glob("*/__init__.py")}
    arrows = {
        (package, other)
        for package in packages
        for file in (PROVIDER / package).rglob("*.py")
        for other in needed(file)
        if other in packages - {package}
    }
    assert len(arrows) <= MAX_ARROWS, sorted(arrows)
