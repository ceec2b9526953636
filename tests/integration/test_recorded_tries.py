"""However each version of Airflow describes a try, its task sends once (with contexts that real ones gave)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.airflow_names import AirflowFailException
from support.memory import InMemoryRows, remembering
from support.recorded_contexts import RecordedContext, recorded, recorded_versions

VERSIONS = recorded_versions()

CASES = [
    *("first try", "automatic retry", "this task cleared", "this task cleared before its retry"),
    *("another task cleared before the retry", "cleared while it runs"),
    *("run queued again before the retry", "run deleted and made again"),
]


@pytest.fixture
def run(connection) -> Callable[..., str]:
    """Run a try of a delivery as it was recorded; the id of what it has sent."""
    rows, given = InMemoryRows(), {"subject": "Report", "recipients": ["ann@example.com"]}

    def run(known: RecordedContext, **changes: Any) -> str:
        context = known.context(**changes)
        context["ti"].xcom_push = lambda *_, **__: None
        context["ti"].start_date = context["dag_run"].start_date
        operator = DeliverFilesOperator(task_id="task", files={"name": "a.csv", "content": "a,b"}, **given)
        with remembering(rows):
            return str(operator.execute(context)["id"])

    return run


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_task_sends_once_whatever_happens_to_its_attempts(run, sandbox, version, case) -> None:
    sent = {run(known) for known in recorded(version, case) if known.step == "execute"}
    assert sent == {sandbox.assert_sent_once()}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_attempt_that_airflow_has_given_up_sends_nothing(run, sandbox, version) -> None:
    for known in recorded(version, "marked failed while it runs, then cleared"):
        if known.step == "other":
            with pytest.raises(AirflowFailException, match="the task is failed.*nothing is sent"):
                run(known)
    sandbox.assert_nothing_sent()


def test_a_delivery_in_a_loop_creates_nothing_and_one_that_reads_it_from_outside_is_sent(run, sandbox) -> None:
    """Iterations could be taken for one another."""
    error = r"^Task 'body\.\w+' is in a loop.* Nothing was created\. .*expand"
    for case, task_id in product(("loop", "loop, automatic retry"), ("body.member", "body.mapped")):
        for known in recorded("3.4.0b2", case, task_id):
            with pytest.raises(AirflowFailException, match=error):
                run(known)
    assert sandbox.requests() == []
    run(recorded("3.4.0b2", "loop", "outside")[-1])
    sandbox.assert_sent_once()
