"""What is needed of a logger: Airflow's tasks and triggers have one that is not the standard library's."""

from __future__ import annotations

from typing import Any, Protocol


class Log(Protocol):
    """The two levels that a delivery's story is told in."""

    def info(self, message: str, /, *args: Any) -> Any: ...

    def warning(self, message: str, /, *args: Any) -> Any: ...
