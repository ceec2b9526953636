"""A folder of tests stands alone, and tests of promises name what users see: no inner package of the provider.

It imports ``support`` and nothing else of ``tests/``, by no path of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from support.repository import REPOSITORY, TESTS

PROVIDER = REPOSITORY / "plugins" / "outbound_transfer"

#: What tests of promises may import of the provider, beside :mod:`support.provider`.
PUBLIC = {
    *("operators", "transfers", "sensors", "triggers", "hooks", "decorators", "notifications", "links", "assets"),
    *("cli", "ui", "exceptions", "get_provider_info", "example_dags"),
}
INNER = {path.stem for path in PROVIDER.iterdir()} - PUBLIC

PROMISES = ("benchmarks", "e2e", "integration", "resilience", "support", "versions")

#: The only module of theirs that has inner names for good.
GATE = "support/provider.py"

#: Modules that still name inner packages, by folder. The list may only shrink.
EXEMPT = {
    f"{folder}/{name}.py"
    for folder, names in {
        "benchmarks": "bench_ingest bench_query bench_upload",
        "e2e/dbt": "test_dbt",
        "e2e/warehouses": "hooks",
        "integration/lake": "test_iceberg",
        "integration/store": (
            "conftest test_concurrent_ingest test_deliveries test_engine test_event_store "
            "test_input_hardening test_mysql test_table_names test_views"
        ),
        "integration": "test_event_feed_to_iceberg test_event_feed_to_sql test_mistakes test_privacy",
        "resilience/crash_ingest": "kills targets",
        "resilience/fuzz": "feed_fuzz secret_fuzz test_secret_fuzz",
        "support": "deliveries_table feed_pages iceberg memory sample_rows warehouses",
    }.items()
    for name in names.split()
}

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


def inner_names(tree: ast.Module) -> set[str]:
    """Return the inner packages of the provider that a module imports, or names in a text."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(re.findall(r"(?:from|import|^) *(outbound_transfer\.[a-z_.]+)", node.value, re.MULTILINE))
    return {name.split(".")[1] for name in names if name.startswith("outbound_transfer.")} & INNER


@pytest.mark.parametrize("folder", PROMISES)
def test_tests_of_promises_name_no_inner_package(folder: str) -> None:
    """So that they judge the next core without being edited."""
    named = {
        str(file.relative_to(TESTS)): names
        for file in sorted((TESTS / folder).rglob("*.py"))
        if (names := inner_names(ast.parse(file.read_text())))
    }
    named.pop(GATE, None)
    assert {file: names for file, names in named.items() if file not in EXEMPT} == {}
    assert {file for file in EXEMPT if file.startswith(f"{folder}/")} - named.keys() == set(), "needs no exemption"


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


def test_the_files_that_run_with_each_airflow_version_exist() -> None:
    named = re.findall(r'"(tests/[^":]+)', (TESTS / "versions" / "__main__.py").read_text())
    assert len(named) > 5
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
