"""Tasks that hold secrets: the ways in which recipients come to an operator, and a task without a service's clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import attrs
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

from support.tasks import FakeTaskInstance, SimulatedClock


def _time() -> SimulatedClock:
    return SimulatedClock(SimpleNamespace(advance_clock=lambda seconds: None))  # type: ignore[arg-type]


@dataclass
class SecretTask(FakeTaskInstance):
    """A task instance that the ledger can name, and whose waits take no time."""

    time: SimulatedClock = field(default_factory=_time)
    task_id: str = "deliver"
    dag_id: str = "dag"
    run_id: str = "run"
    map_index: int = -1


def rendered_fields(operator: Any) -> dict[str, Any]:
    """What Airflow keeps and shows of the rendered fields."""
    return _serialize_rendered_fields(operator)


class _Person(NamedTuple):
    email: str
    phone: str


@attrs.define
class _Member:
    email: str
    phone: str


#: Makes, of a phone number: what a template sees, the argument, and whether templates render to objects.
Recipients = Callable[[str], tuple[dict[str, Any], Any, bool]]


def _given(make: Callable[[str], Any]) -> Recipients:
    return lambda phone: ({}, lambda context, jinja_env: make(phone), False)


def _template(make: Callable[[str], Any], *, native: bool = False) -> Recipients:
    return lambda phone: ({"board": make(phone)}, "{{ board }}", native)


def _board(phone: str) -> list[Any]:
    return [{"email": "ann@example.com", "name": "Ann", "phone": phone}, "bob@example.com"]


def _json(phone: str) -> str:
    return json.dumps(_board(phone))


RECIPIENTS: Final[dict[str, Recipients]] = {
    "list": _given(_board),
    "list in the Dag": lambda phone: ({}, _board(phone), False),
    "one": _given(lambda phone: _board(phone)[0]),
    "JSON": _template(_json),
    "JSON of one": _template(lambda phone: json.dumps(_board(phone)[0])),
    "JSON in lines": _template(lambda phone: f"\n{json.dumps(_board(phone), indent=1)}\n"),
    "JSON, native": _template(_json, native=True),
    "Python": _template(_board),
    "Python, native": _template(_board, native=True),
    "Python of one": _template(lambda phone: _board(phone)[0]),
    "a list of templates": lambda phone: ({"ann": _board(phone)[0]}, ["{{ ann }}", "bob@example.com"], False),
    "cut JSON": _template(lambda phone: _json(phone)[:-2]),
    "JSON of JSON": _template(lambda phone: json.dumps(_json(phone))),
    "the phone": _given(lambda phone: phone),
    "the phone as address": _given(lambda phone: [{"email": phone, "phone": "ann@example.com"}]),
    "another field": _given(lambda phone: [{"email": "ann@example.com", "mobile": phone}]),
    "nested": _given(lambda phone: [{"email": "ann@example.com", "contact": {"phone": phone}}]),
    "a tuple": _given(lambda phone: ("ann@example.com", phone)),
    "a named tuple": _given(lambda phone: [_Person("ann@example.com", phone)]),
    "an object": _given(lambda phone: [_Member("ann@example.com", phone)]),
    "bytes": _given(lambda phone: _json(phone).encode()),
    "a generator": _given(lambda phone: (one for one in _board(phone))),
}
