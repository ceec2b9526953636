"""The pages of ``docs/`` say what the code does: arguments, error codes, messages, arithmetic, links."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer import exceptions
from outbound_transfer.client import errors
from outbound_transfer.client.errors import BY_CODE, ServiceError, error_of
from outbound_transfer.delivery.attempt import StaleTry
from outbound_transfer.get_provider_info import get_provider_info
from outbound_transfer.queries import errors as query_errors
from outbound_transfer.store import errors as store_errors
from support.repository import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = {path.name: path.read_text() for path in sorted(DOCS.glob("*.md"))}

#: Every Markdown file whose links are checked, by its path.
LINKED = [
    str(path.relative_to(REPOSITORY))
    for path in sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *REPOSITORY.glob("include/*/*.md")])
]


def sections(page: str) -> dict[str, str]:
    """Text by heading of the second level."""
    parts = re.split(r"^## (.+)$", PAGES[page], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str) -> Iterator[list[str]]:
    """The cells of the tables' rows, without their heads."""
    for line in re.sub(r"^\|.*\|\n(?=\|---)", "", text, flags=re.MULTILINE).splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split(" |")]


# Operators


OPERATORS = {name: text for name, text in sections("operators.md").items() if name != "OutboundTransferHook"}


def class_of(name: str) -> Any:
    (module,) = re.findall(r"^\[`(outbound_transfer\.[\w.]+)`", sections("operators.md")[name].strip())
    return getattr(importlib.import_module(module), name)


def arguments_of(kind: type) -> set[str]:
    """Every argument, but those of Airflow."""
    return {
        name
        for each in kind.__mro__
        if each.__module__.startswith("outbound_transfer.") and "__init__" in vars(each)
        for name, parameter in list(inspect.signature(each.__init__).parameters.items())[1:]
        if parameter.kind is not parameter.VAR_KEYWORD
    }


def described_in(kind: type, seen: frozenset[type] = frozenset()) -> set[str]:
    """The arguments that the docstrings of a class, its bases and the classes that it refers to describe."""
    described: set[str] = set()
    for each in kind.__mro__:
        if each.__module__.startswith("outbound_transfer.") and each not in seen:
            text = vars(each).get("__doc__") or ""
            described |= set(re.findall(r":param (?:\w+ )?(\w+):", text))
            seen |= {each}
            for name in re.findall(r"[Ss]ee :class:`\.?(\w+)`", text):
                described |= described_in(class_of(name), seen)
    return described


@pytest.mark.parametrize("name", OPERATORS)
def test_the_reference_describes_each_argument(name: str) -> None:
    assert arguments_of(class_of(name)) - described_in(class_of(name)) == set()


def test_each_operator_stands_there() -> None:
    info = get_provider_info()
    modules = [m for kind in ("operators", "sensors") for entry in info[kind] for m in entry["python-modules"]]
    modules += [entry["python-module"] for entry in info["transfers"]]
    public = {
        name
        for module in modules
        for name, thing in vars(importlib.import_module(module)).items()
        if inspect.isclass(thing) and thing.__module__ == module and not name.startswith("_")
    }
    assert public == OPERATORS.keys()


def test_the_reference_describes_each_method_of_the_hook() -> None:
    methods = inspect.getmembers(class_of("OutboundTransferHook"), inspect.isfunction)
    own = [thing for name, thing in methods if thing.__module__.startswith("outbound_transfer.") and name[0] != "_"]
    assert [thing.__qualname__ for thing in own if not thing.__doc__] == []


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=lambda page: page.name)
def test_each_module_of_the_reference_exists_and_a_git_host_shows_where(page: Path) -> None:
    names = re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)
    for name in names:
        assert pkgutil.resolve_name(name)
    assert not names or f"/reference/{page.stem}/). Source: [" in page.read_text()


# Errors


TROUBLE = sections("troubleshooting.md")
SERVICE_ERRORS = {
    code: does
    for cells in rows(TROUBLE["Errors of the service"])
    for code, does in ((code, cells[1]) for code in re.findall(r"`([a-z_]+)`", cells[0]))
}


def test_each_code_stands_there() -> None:
    assert SERVICE_ERRORS.keys() == {code for _, code in BY_CODE}


@pytest.mark.parametrize("code", SERVICE_ERRORS)
def test_a_code_is_treated_as_its_row_says(code: str) -> None:
    for status, kind in [(status, kind) for (status, each), kind in BY_CODE.items() if each == code]:
        assert kind.advice != ServiceError.advice
        error = error_of(status, code, "")
        expected = ("repeated", "waits for a slot") if error.is_transient else ("fails the task", "reads the transfer")
        assert SERVICE_ERRORS[code].startswith(expected)


def own_errors() -> dict[str, type]:
    """Every error that leaves this package, is no response of the service, and is not only a family of others."""
    found = {kind for name in exceptions.__all__ if inspect.isclass(kind := getattr(exceptions, name))}
    raised_as_they_are = {errors.InvalidDelivery, errors.SourceUnreadable, store_errors.InvalidCursor}
    leaves = {kind for kind in found if not kind.__subclasses__() and not issubclass(kind, ServiceError)}
    return {kind.__name__: kind for kind in leaves | raised_as_they_are}


@pytest.mark.parametrize("name", sorted(own_errors()))
def test_the_reference_says_what_to_do(name: str) -> None:
    assert "What to do: " in (own_errors()[name].__doc__ or "")


def test_the_reference_has_each_error() -> None:
    found = {StaleTry}
    for module in (errors, store_errors, query_errors):
        found |= {
            thing
            for thing in vars(module).values()
            if inspect.isclass(thing) and issubclass(thing, errors.OutboundTransferError)
        }
    assert {kind.__name__ for kind in found} - set(exceptions.__all__) == set()


def test_each_error_that_the_page_names_exists() -> None:
    named = {cells[0].strip("`") for text in TROUBLE.values() for cells in rows(text) if re.match(r"`[A-Z]", cells[0])}
    assert named <= own_errors().keys()


@functools.cache
def said_in_the_code() -> str:
    """Every text of the package, the parts of its f-strings joined by an ellipsis."""
    texts = []
    for path in (REPOSITORY / "plugins/outbound_transfer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


MESSAGES = [
    cells[0] if name == "Waiting" else cells[1]
    for name, text in TROUBLE.items()
    # Those of the service, and of Airflow and libraries: tests/integration/test_mistakes.py has them said.
    if name not in ("Errors of the service", "Common errors")
    for cells in rows(text)
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_what_the_code_says(message: str) -> None:
    code = re.sub(r"%[.\d]*[a-z]", "…", said_in_the_code())
    pieces = [piece.strip() for piece in message.replace("`", "").split("…")]
    assert [piece for piece in pieces if piece.strip(" .,:")], "nothing is quoted"
    assert [piece for piece in pieces if piece not in code.replace("`", "")] == []


# Links


@pytest.mark.parametrize("page", LINKED)
def test_each_link_leads_somewhere(page: str) -> None:
    source = REPOSITORY / page
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", source.read_text()):
        path, _, anchor = link.partition("#")
        target = source.parent / path if path else source
        assert target.exists(), link
        if anchor.startswith("outbound_transfer."):
            assert anchor.startswith(tuple(re.findall(r"^::: (\S+)", target.read_text(), re.MULTILINE))), link
            assert pkgutil.resolve_name(anchor)
        elif anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings], link


def test_commands_are_those_that_each_airflow_has() -> None:
    # Airflow has commands of providers from 3.2 on; the script has the same in every version.
    named = {path for path in LINKED if "airflow outbound-transfer" in (REPOSITORY / path).read_text()}
    assert named <= {"README.md", "docs/airflow-versions.md", "docs/guarantees.md"}


def test_each_page_is_in_the_index() -> None:
    assert {page for page in PAGES if f"({page})" not in PAGES["README.md"]} == {"README.md"}


# Rules


def test_each_rule_of_the_service_that_is_cited_stands_there() -> None:
    rules = re.findall(r"^### R(\d+) ", PAGES["service-api.md"], re.MULTILINE)
    assert [int(number) for number in rules] == sorted({int(number) for number in rules}), "a number stands twice"
    unknown = {
        f"{path.relative_to(REPOSITORY)}: {citation}"
        for folder in ("plugins", "include", "dags", "tests", "docs")
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in {".py", ".md", ".sql", ".yaml"}
        for citation in re.findall(r"service-api\.md, (R\d+(?:(?:,| and| to) R\d+)*)", path.read_text())
        if not set(re.findall(r"\d+", citation)) <= set(rules)
    }
    assert unknown == set()


def test_each_test_that_enforces_a_rule_exists() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", PAGES["architecture.md"]))
    assert named
    assert {name for name in named if not any((REPOSITORY / "tests").rglob(name))} == set()
    contracts = {
        name
        for line in re.findall(r"import-linter, .*", PAGES["architecture.md"])
        for name in re.findall(r"\*(.+?)\*", line)
    }
    assert contracts <= set(re.findall(r'^name = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE))


def test_each_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = {
        (page, target)
        for page in LINKED
        for target in re.findall(r"`make ([a-z0-9-]+)", (REPOSITORY / page).read_text())
    }
    assert {(page, target) for page, target in named if target not in targets} == set()


# Tables


def test_the_page_of_tables_is_what_the_definitions_say() -> None:
    spec = importlib.util.spec_from_file_location("tables_page", REPOSITORY / "scripts/tables_page.py")
    tables_page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables_page)
    page = PAGES["tables.md"]

    assert tables_page.updated(page) == page, "run: python scripts/tables_page.py"


def test_from_a_task_to_the_send_there_are_few_files() -> None:
    section = PAGES["architecture.md"].partition("## From a task to the send\n")[2].partition("\n## ")[0]
    table = "".join(line for line in section.splitlines() if line.startswith("|"))
    files = [REPOSITORY / "plugins/outbound_transfer" / name for name in re.findall(r"`(\w+/\w+\.py)`", table)]
    assert len(files) <= 15
    assert sum(len(file.read_text().splitlines()) for file in files) <= 2_600


def test_the_drawing_has_the_packages_of_each_layer() -> None:
    (layers,) = re.findall(
        r'"outbound_transfer"\]\n.*?layers = \[(.*?)\]', (REPOSITORY / "pyproject.toml").read_text(), re.DOTALL
    )
    names = set(re.findall(r"\w+", layers))
    drawing = (DOCS / "images/packages.svg").read_text()
    assert set(re.findall(r'class="on-dark"[^>]*>(\w+)<', drawing)) == names
