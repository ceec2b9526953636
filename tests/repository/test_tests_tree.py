"""A folder of tests stands alone: it imports ``support`` and nothing else of ``tests/``, by no path of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from support.repository import TESTS

FOLDERS = sorted(path.name for path in TESTS.iterdir() if path.is_dir() and any(path.rglob("*.py")))


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the first name of every absolute import, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def path_edits(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that write to ``sys.path``, also through pytest."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "syspath_prepend":
            yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_sys_path(node.func.value):
            yield node.lineno
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bare = [target.value if isinstance(target, ast.Subscript) else target for target in targets]
            if any(map(is_sys_path, bare)):
                yield node.lineno


def is_sys_path(node: ast.AST) -> bool:
    return ast.unparse(node) == "sys.path"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_itself_and_support(folder: str) -> None:
    others = {*FOLDERS, "conftest", "tests"} - {folder, "support", "packaging"}  # packaging is a library, too
    broken = {
        f"{file.relative_to(TESTS)} imports {name}"
        for file in sorted((TESTS / folder).rglob("*.py"))
        for name in imported(ast.parse(file.read_text()))
        if name in others
    }
    assert broken == set()


def test_nothing_edits_the_import_path() -> None:
    broken = {
        f"{file.relative_to(TESTS)}:{line}"
        for file in sorted(TESTS.rglob("*.py"))
        for line in path_edits(ast.parse(file.read_text()))
    }
    assert broken == set()


def test_no_module_of_packaging_is_imported_by_name_of_its_folder() -> None:
    assert not (TESTS / "packaging" / "__init__.py").exists(), "it would hide the library"
