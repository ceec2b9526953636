"""However each version of Airflow describes a try, its task sends once (with contexts that real ones gave)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import AirflowFailException
from support.memory import InMemoryRows, remembering
from support.recorded_contexts import RecordedContext, recorded, recorded_versions

VERSIONS = recorded_versions()

CASES = [
    "first try",
    "automatic retry",
    "this task cleared",
    "this task cleared before its retry",
    "another task cleared before the retry",
    "cleared while it runs",
    "run queued again before the retry",
    "run deleted and made again",
]


@pytest.fixture
def run(connection: str, sandbox: Sandbox, tmp_path: Path) -> Callable[[RecordedContext], str]:
    """Run a try of a delivery as it was recorded; the id of what it has sent."""
    (tmp_path / "a.csv").write_text("a,b")
    rows = InMemoryRows()

    def run(known: RecordedContext, **changes: Any) -> str:
        context = known.context(**changes)
        context["ti"].xcom_push = lambda *_, **__: None
        context["ti"].start_date = context["dag_run"].start_date
        operator = DeliverFilesOperator(
            task_id="task", files=str(tmp_path / "a.csv"), subject="Report", recipients=["ann@example.com"]
        )
        with remembering(rows):
            return str(operator.execute(context)["id"])

    return run


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_happens_to_a_task_its_tries_send_once(run, sandbox, version, case) -> None:
    sent = {run(known) for known in recorded(version, case) if known.step == "execute"}
    assert sent == {sandbox.assert_sent_once()}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_try_that_airflow_has_given_up_sends_nothing(run: Callable[..., str], sandbox: Sandbox, version: str) -> None:
    for known in recorded(version, "marked failed while it runs, then cleared"):
        if known.step == "other":
            with pytest.raises(AirflowFailException, match="the task is failed.*nothing is sent"):
                run(known)
    sandbox.assert_nothing_sent()


@pytest.mark.parametrize("task_id", ["body.member", "body.mapped"])
@pytest.mark.parametrize("case", ["loop", "loop, automatic retry"])
def test_a_delivery_in_a_loop_creates_nothing_and_names_the_remedy(run, sandbox, case, task_id) -> None:
    """Iterations could be taken for one another."""
    for known in recorded("3.4.0b2", case, task_id):
        with pytest.raises(
            AirflowFailException, match=r"^Task 'body\.\w+' is in a loop.* Nothing was created\. .*expand"
        ):
            run(known)
    assert sandbox.requests() == []


def test_a_delivery_that_reads_a_loop_from_outside_is_sent(run: Callable[..., str], sandbox: Sandbox) -> None:
    run(recorded("3.4.0b2", "loop", "outside")[-1])
    sandbox.assert_sent_once()
