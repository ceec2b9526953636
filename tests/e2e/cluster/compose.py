"""Reads Compose files: services with their commands, environments, volumes, conditions, checks and replicas.

Just the part of the Compose specification that docker-compose.yaml uses. A key of a service that is not known here is
an error, so that nothing of the file is passed over in silence. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, Literal

import yaml

Condition = Literal["service_healthy", "service_completed_successfully"]

_ENGINES_OWN = {"build", "init", "logging", "mem_limit", "restart", "security_opt", "stop_grace_period"}
_CARRIED_OUT = {
    *("command", "deploy", "depends_on", "entrypoint", "environment", "healthcheck"),
    *("image", "ports", "profiles", "volumes"),
}

_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?:(?P<how>:\?|:-)(?P<rest>[^}]*))?\})")


class ComposeError(Exception):
    """The file cannot be carried out; says which part of it."""


@dataclass(frozen=True)
class Service:
    """One service, every variable filled in."""

    name: str
    image: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    depends_on: Mapping[str, Condition]
    #: Volume or folder by the path at which the container sees it.
    volumes: Mapping[str, str]
    #: The container's ports by the published one.
    ports: Mapping[int, int]
    #: As of Compose: ``CMD`` or ``CMD-SHELL`` first; empty where there is none.
    check: tuple[str, ...]
    replicas: int

    @property
    def shell_check(self) -> str:
        """The health check as a line for ``/bin/sh``."""
        kind, *words = self.check
        return shlex.join(words) if kind == "CMD" else words[0]


def read(texts: Iterable[str], variables: Mapping[str, str], profiles: Iterable[str] = ()) -> dict[str, Service]:
    """The services of the ``profiles``, in an order in which they can be started.

    :param texts: the file and those that override it, as ``docker compose -f … -f …`` takes them.
    :param variables: as of ``.env``.
    :raises ComposeError: a required variable is missing, or the file says what is not known here.
    """
    merged: dict[str, Any] = {}
    for text in texts:
        merged = _merged(merged, yaml.safe_load(text))
    raw = {name: service for name, service in merged["services"].items() if _wanted(service, set(profiles))}
    services = {name: _service(name, filled_in(service, variables)) for name, service in raw.items()}
    order = TopologicalSorter({name: service.depends_on.keys() for name, service in services.items()})
    return {name: services[name] for name in order.static_order()}


def filled_in(value: Any, variables: Mapping[str, str]) -> Any:
    """``value`` with Compose's variables in the place of their names, in every text of it."""
    if isinstance(value, dict):
        return {key: filled_in(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [filled_in(item, variables) for item in value]
    return _VARIABLE.sub(lambda match: _value(match, variables), value) if isinstance(value, str) else value


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    if match["dollar"]:
        return "$"
    value = variables.get(match["name"], "")
    if match["how"] == ":?" and not value:
        raise ComposeError(f"{match['name']} is missing: {match['rest']}")
    return value or (match["rest"] if match["how"] == ":-" else "")


def _merged(base: Any, other: Any) -> Any:
    """As Compose merges files: mappings by key, anything else replaced."""
    if isinstance(base, dict) and isinstance(other, dict):
        return base | {key: _merged(base.get(key), value) for key, value in other.items()}
    return other


def _wanted(service: Mapping[str, Any], profiles: set[str]) -> bool:
    return not service.get("profiles") or not profiles.isdisjoint(service["profiles"])


def _service(name: str, raw: Mapping[str, Any]) -> Service:
    if unknown := raw.keys() - _CARRIED_OUT - _ENGINES_OWN:
        raise ComposeError(f"{name}: {', '.join(sorted(unknown))} is not known here")
    return Service(
        name=name,
        image=raw["image"],
        entrypoint=_words(raw.get("entrypoint", ())),
        command=_words(raw.get("command", ())),
        environment={key: str(value) for key, value in raw.get("environment", {}).items()},
        depends_on={other: needed["condition"] for other, needed in raw.get("depends_on", {}).items()},
        volumes={target: source for source, target in _pairs(raw.get("volumes", ()))},
        ports={int(published): int(port) for published, port in _published(raw.get("ports", ()))},
        check=tuple(raw.get("healthcheck", {}).get("test", ())),
        replicas=int(raw.get("deploy", {}).get("replicas", 1)),
    )


def _words(command: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(shlex.split(command) if isinstance(command, str) else command)


def _pairs(volumes: Iterable[str]) -> Iterator[tuple[str, str]]:
    for volume in volumes:
        source, target, *_mode = volume.split(":")
        yield source, target


def _published(ports: Iterable[str]) -> Iterator[tuple[str, str]]:
    for port in ports:
        _address, published, target = port.split(":")
        yield published, target
