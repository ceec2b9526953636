"""Dependencies point one way (design, §3): Airflow roles -> client -> protocol, and the sandbox beside them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROVIDER = REPOSITORY / "plugins/outbound_transfer"
SANDBOX = REPOSITORY / "include/outbound_transfer_sandbox"
DAGS = REPOSITORY / "dags"

HTTP = {"httpx", "httpcore", "h11", "requests", "aiohttp", "urllib3", "tenacity"}
TIME = {"time", "random", "asyncio", "threading", "socket", "sched"}


class Import(NamedTuple):
    """One imported module or name, with where it stands."""

    where: str
    name: str


def imports_of(file: Path) -> Iterator[Import]:
    """Every import of a file, those inside functions and those for type checking included."""
    package = _package_of(file)
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        where = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (Import(where, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (Import(where, f"{module}.{alias.name}") for alias in node.names)


def _package_of(file: Path) -> list[str]:
    top = next((base for base in (PROVIDER, SANDBOX) if file.is_relative_to(base)), file.parent)
    return list(file.parent.relative_to(top.parent).parts)


def broken(folder: Path, forbidden: Callable[[str], bool]) -> list[str]:
    """``file:line imports name`` of each forbidden import below ``folder``."""
    files = sorted(folder.rglob("*.py"))
    assert files, f"nothing to check in {folder}"
    return [f"{i.where} imports {i.name}" for file in files for i in imports_of(file) if forbidden(i.name)]


def within(*packages: str) -> Callable[[str], bool]:
    return lambda name: any(name == package or name.startswith(f"{package}.") for package in packages)


RULES = {
    "the protocol knows no Airflow": (PROVIDER / "protocol", within("airflow")),
    "the protocol knows no HTTP library": (PROVIDER / "protocol", within(*HTTP)),
    "the protocol knows no clock, chance, sleep or thread": (PROVIDER / "protocol", within(*TIME)),
    "the protocol imports nothing of the provider but itself": (
        PROVIDER / "protocol",
        lambda name: within("outbound_transfer")(name) and not within("outbound_transfer.protocol")(name),
    ),
    "the client knows no Airflow": (PROVIDER / "client", within("airflow")),
    "the client imports nothing of the provider but the protocol": (
        PROVIDER / "client",
        lambda name: (
            within("outbound_transfer")(name)
            and not within("outbound_transfer.client", "outbound_transfer.protocol", "outbound_transfer.__version__")(
                name
            )
        ),
    ),
    "the provider knows no sandbox": (PROVIDER, within("outbound_transfer_sandbox")),
    "the sandbox knows no provider": (SANDBOX, within("outbound_transfer")),
    "the sandbox knows no Airflow": (SANDBOX, within("airflow")),
    "the sandbox's services know no HTTP": (
        SANDBOX / "service",
        within(
            "starlette",
            "uvicorn",
            "jinja2",
            "outbound_transfer_sandbox.api",
            "outbound_transfer_sandbox.web",
            "outbound_transfer_sandbox.control",
        ),
    ),
    "the sandbox's stores decide nothing": (
        SANDBOX / "store",
        within(
            "starlette",
            "outbound_transfer_sandbox.errors",
            "outbound_transfer_sandbox.service",
            "outbound_transfer_sandbox.api",
            "outbound_transfer_sandbox.web",
        ),
    ),
    "the sandbox's pages know no store": (
        SANDBOX / "web",
        within("sqlite3", "outbound_transfer_sandbox.store", "outbound_transfer_sandbox.control"),
    ),
    "a DAG knows no sandbox": (DAGS, within("outbound_transfer_sandbox")),
    "a DAG imports public names only": (
        DAGS,
        lambda name: any(part.startswith("_") and part != "__future__" for part in name.split(".")),
    ),
    "nothing that is shipped imports tests": (REPOSITORY / "plugins", within("tests", "pytest", "hypothesis")),
}


@pytest.mark.parametrize("rule", RULES)
def test_imports_keep_to_the_rule(rule: str) -> None:
    folder, forbidden = RULES[rule]
    assert broken(folder, forbidden) == [], rule


def test_only_the_client_speaks_http() -> None:
    found = broken(PROVIDER, within(*HTTP))
    assert [line for line in found if "/client/" not in line] == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import httpx", "httpx"),
        ("from httpx import Client", "httpx.Client"),
        ("def f():\n    import httpx as x", "httpx"),
        ("if TYPE_CHECKING:\n    from httpx._types import X", "httpx._types.X"),
    ],
)
def test_a_broken_rule_is_reported_with_its_file_and_line(tmp_path: Path, code: str, name: str) -> None:
    (tmp_path / "module.py").write_text(f"\n{code}\n")
    (found,) = broken(tmp_path, within("httpx"))
    line = 2 + code.count("\n")
    assert found == f"{tmp_path}/module.py:{line} imports {name}"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from .models import X", "outbound_transfer.protocol.models.X"),
        ("from . import models", "outbound_transfer.protocol.models"),
        ("from ..client import X", "outbound_transfer.client.X"),
    ],
)
def test_relative_imports_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, name: str) -> None:
    provider = tmp_path / "outbound_transfer"
    (provider / "protocol").mkdir(parents=True)
    (provider / "protocol/new.py").write_text(code)
    monkeypatch.setitem(globals(), "PROVIDER", provider)
    assert [found.name for found in imports_of(provider / "protocol/new.py")] == [name]
