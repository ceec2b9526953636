"""Names use the words of docs/glossary.md: no retired word in an identifier, no class name twice in one package."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").exists())

#: Folder by package. Of the tests, only modules and classes are checked: a test's name is a sentence.
PACKAGES: Final = {
    "outbound_transfer": "plugins/outbound_transfer",
    "outbound_transfer_sandbox": "include/outbound_transfer_sandbox",
    "dags": "dags",
    "scripts": "scripts",
    "tests": "tests",
}

#: Words that occur in no name, with what to use instead.
RETIRED: Final = {
    "response": ("answer", "answers", "answered"),
    "call, fetch or poll": ("ask", "asks", "asked", "asking"),
    "send (a call), response": ("exchange", "exchanges"),
    "retry delay, backoff": ("pause", "pauses", "paused", "rest", "rests"),
    "waiter": ("waits",),
    "poll": ("look", "looks", "looked", "round", "rounds"),
    "finish, terminal": ("end", "ends", "ended", "ending"),
    "pick up": ("collect", "collects", "collected"),
    "load (rows), applied (calls)": ("land", "lands", "landed", "landing"),
    "in doubt": ("unclear", "doubt"),
    "reconcile": ("settle", "settles", "settled", "settlement"),
    "timestamp": ("instant", "moment", "when"),
    "timeout": ("patience", "patient"),
    "cached": ("kept",),
    "MAX_, MIN_": ("most", "least", "longest", "shortest"),
    "notify, log": ("tell", "tells", "told", "telling", "news"),
    "a glossary word": ("begun", "desk", "story"),
}

#: Names, or parts of names, that are retired as a whole: their words alone are fine elsewhere.
RETIRED_NAMES: Final = {
    "terminal": r"final|known_final|over",
    "try": r"(.+_)?(task|stale|begin|newest|previous|earlier|later)_attempts?",
    "deadline": r"until",
    "MAX_": r"many|(.+_)?at_once",
    "RetryDetails, retry hook": r"(on|log|last|shortest|longest)_wait",
    "waiter": r"wait_of_.+",
    "config": r"place|places",
}

#: A class is not named as a wait: it is a waiter, or the details of a retry.
RETIRED_CLASSES: Final = {"Waiter, RetryDetails, DeferRequested": r"(.+_)?wait"}

#: Parts of names in which a retired word is right, with the reason.
ALLOWED: Final = {
    r"security_answers?|(max_)?wrong_answers?|normalize_answer": "the service's word for the reply to its question",
    r"in_doubt": "the glossary's word",
    r"pause_writing": "asyncio's protocol calls it",
}


def words(name: str) -> str:
    """Return ``name`` in lower case, its words joined by ``_``."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return "_".join(part for part in parted.lower().split("_") if part)


def replacement(name: str, *, is_class: bool = False) -> str | None:
    """Return what to use instead of the retired word in ``name``, or None if there is none."""
    plain = words(name)
    for use, pattern in [*RETIRED_NAMES.items(), *(RETIRED_CLASSES.items() if is_class else ())]:
        if re.fullmatch(pattern, plain):
            return use
    for pattern in ALLOWED:
        plain = re.sub(rf"(?<![a-z0-9])({pattern})(?![a-z0-9])", "", plain)
    found = set(plain.split("_"))
    return next((use for use, retired in RETIRED.items() if found & set(retired)), None)


def names_of(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield each function, class, argument, constant and field that a module defines, and whether it is a class."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, False
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            arguments = node.args
            listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            yield from ((each.arg, False) for each in [*listed, arguments.vararg, arguments.kwarg] if each)
        if isinstance(node, ast.ClassDef):
            yield node.name, True
        if isinstance(node, (ast.ClassDef, ast.Module)):
            for statement in node.body:
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
                )
                yield from ((target.id, False) for target in targets if isinstance(target, ast.Name))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"Column", "Table"}:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value, False


def found_in(package: str) -> Iterator[tuple[str, bool]]:
    folder = REPOSITORY / PACKAGES[package]
    for path in sorted(folder.rglob("*.py")):
        yield path.stem, False
        named = names_of(ast.parse(path.read_text()))
        yield from (each for each in named if package != "tests" or each[1])
    for path in sorted(folder.rglob("*.sql")):
        for name in re.findall(r"\bAS (\w+)|CREATE VIEW (\w+)", path.read_text(), re.IGNORECASE):
            yield "".join(name), False


def violations() -> Iterator[str]:
    """Yield what is wrong with each name that breaks a rule."""
    for package in PACKAGES:
        for name, is_class in found_in(package):
            if use := replacement(name, is_class=is_class):
                yield f"{package}: {name}: use {use} (docs/glossary.md)"
    for package in ("outbound_transfer", "outbound_transfer_sandbox"):
        for name, count in Counter(name for name, is_class in found_in(package) if is_class).items():
            if count > 1:
                yield f"{package}: {count} classes have the name {name}"


def test_names_use_the_vocabulary() -> None:
    assert sorted(set(violations())) == []
