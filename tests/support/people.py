"""A person who answers what tasks ask in Airflow, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

from airflow.providers.standard.operators import hitl
from airflow.providers.standard.triggers import hitl as triggers

#: What Airflow says of a wait that nobody ended.
TIMEOUT = {"error": "The timeout has passed", "error_type": "timeout"}


@dataclass
class Person:
    """Answers the requests of tasks as Airflow keeps them: one for each task instance, the first one as long as it is.

    :ivar does: gets the request, and returns the option to choose, or an event.
    """

    does: Callable[[SimpleNamespace], Any] = lambda shown: shown.options[0]
    shown: list[SimpleNamespace] = field(default_factory=list)
    _kept: dict[str, SimpleNamespace] = field(default_factory=dict)

    def request(self, ti_id: str, **request: Any) -> None:
        self.shown.append(SimpleNamespace(**request))
        self._kept.setdefault(ti_id, self.shown[-1]).response = None

    def read(self, ti_id: str) -> SimpleNamespace:
        """Return the response to the request of a task, as a trigger reads it; the person gives it by now."""
        if self._kept[ti_id].response is None:
            self.answer(ti_id)
        response = self._kept[ti_id].response
        user = SimpleNamespace(**response["responded_by_user"])
        fields = {**response, "responded_by_user": user, "params_input": {}}
        return SimpleNamespace(response_received=True, **fields)

    def answer(self, ti_id: str) -> dict[str, Any]:
        kept = self._kept[ti_id]
        chosen = self.does(kept)
        if not isinstance(chosen, str):
            return dict(chosen)
        user = {"id": "1", "name": "ann"}
        now = datetime.now(UTC)
        kept.response = {"chosen_options": [chosen], "responded_at": now, "responded_by_user": user}
        return {**kept.response, "params_input": {}, "timedout": False}


def rejects(shown: SimpleNamespace) -> str:
    return str(shown.options[1])


@contextmanager
def answering(person: Person) -> Iterator[Person]:
    with (
        mock.patch.object(hitl, "upsert_hitl_detail", person.request),
        mock.patch.object(triggers, "get_hitl_detail_content_detail", person.read),
    ):
        yield person
