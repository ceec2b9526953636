"""Facts of Airflow that deliveries build on, as each recorded version shows them to a running try."""

from __future__ import annotations

from typing import Any

import pytest

from support.recorded_contexts import CallFailed, RecordedContext, recorded, recorded_versions

VERSIONS = recorded_versions()
WITH_STORE = [version for version in VERSIONS if recorded(version, "first try")[0].stored is not None]
WITH_LOOPS = recorded_versions("loop")
COUNTING_EACH_CLEAR = [version for version in VERSIONS if not version.startswith(("3.0.", "3.1."))]


def counters(known: RecordedContext) -> tuple[int, int, int]:
    """Return the try number, how many retries the try has if it counts as the first, and the clears of the run."""
    ti = known.known["ti"]
    return ti["try_number"], ti["max_tries"] - (ti["try_number"] - 1), known.known["dag_run"]["clear_number"]


def in_running_run(version: str) -> int:
    """Return what the clear of a task in a running run adds to the clears of the run."""
    return int(version in COUNTING_EACH_CLEAR)


def time_of(known: RecordedContext, name: str) -> Any:
    return getattr(known.context()["dag_run"], name)


def call(known: RecordedContext, method: str, **given: Any) -> Any:
    ti = known.task_instance()
    run = {"dag_id": ti.dag_id, "run_ids": [ti.run_id]} if method != "xcom_pull" else {"key": "made"}
    return getattr(ti, method)(**run, **given)


def others(known: RecordedContext) -> list[str]:
    return [task_id for task_id in known.known["task_ids"] if task_id != known.known["ti"]["task_id"]]


def state_of(known: RecordedContext) -> Any:
    ti = known.task_instance()
    index = ti.map_index if ti.map_index >= 0 else None
    states = call(known, "get_task_states", task_ids=[ti.task_id], map_index=index)
    return states[ti.run_id][ti.task_id if index is None else f"{ti.task_id}_{index}"]


@pytest.mark.parametrize("version", VERSIONS)
class TestTries:
    """All tasks have one retry: ``max_tries`` tells a clear of this task from its automatic retry."""

    def test_a_first_try(self, version: str) -> None:
        for task_id in ("plain", "mapped", "deferring"):
            assert {counters(known) for known in recorded(version, "first try", task_id)} == {(1, 1, 0)}

    def test_an_automatic_retry(self, version: str) -> None:
        first, retry = recorded(version, "automatic retry")
        assert (counters(first), counters(retry)) == ((1, 1, 0), (2, 0, 0))

    def test_a_clear_of_this_task(self, version: str) -> None:
        (cleared,) = recorded(version, "this task cleared")
        assert counters(cleared) == (2, 1, 1)

    def test_a_clear_of_one_index(self, version: str) -> None:
        (cleared,) = recorded(version, "one index cleared", "mapped")
        assert (cleared.known["ti"]["map_index"], counters(cleared)) == (1, (2, 1, 2))

    def test_a_clear_before_the_retry(self, version: str) -> None:
        """Before Airflow 3.2, only the clear of a finished run is counted."""
        assert counters(recorded(version, "this task cleared before its retry")[-1]) == (2, 1, in_running_run(version))

    def test_a_clear_of_another_task(self, version: str) -> None:
        """The retry still has the ``max_tries`` of its first try."""
        retry = recorded(version, "another task cleared before the retry")[-1]
        assert counters(retry) == (2, 0, in_running_run(version))

    def test_a_first_try_in_a_cleared_run(self, version: str) -> None:
        (late,) = recorded(version, "first try in a cleared run", "late")
        assert counters(late) == (1, 0, 1), "it has no retries"

    def test_a_clear_while_the_task_runs(self, version: str) -> None:
        assert counters(recorded(version, "cleared while it runs")[-1]) == (2, 1, in_running_run(version))


@pytest.mark.parametrize("version", VERSIONS)
class TestDeferrals:
    def test_the_resumed_try_is_the_same_and_has_its_next_method(self, version: str) -> None:
        execute, resume = recorded(version, "first try", "deferring")
        assert counters(execute) == counters(resume)
        assert (execute.known["next_method"], resume.known["next_method"]) == (None, "resume")

    def test_a_clear_executes_the_task_again(self, version: str) -> None:
        steps = [(known.step, counters(known)[0]) for known in recorded(version, "deferring task cleared", "deferring")]
        assert steps == [("execute", 2), ("resume", 2)]

    def test_a_retry_after_a_failed_resume_executes_the_task_again(self, version: str) -> None:
        """Airflow 3.0 resumes it with the old event instead."""
        tries = recorded(version, "automatic retry", "deferring")
        retry = [(known.step, known.known["next_method"]) for known in tries if counters(known)[0] == 2]
        executes = [] if version.startswith("3.0.") else [("execute", None)]
        assert retry == [*executes, ("resume", "resume")]

    def test_xcoms_survive_the_deferral_but_not_the_start_of_a_try(self, version: str) -> None:
        tries = [
            (known.step, call(known, "xcom_pull", task_ids="deferring") is not None)
            for case in ("first try", "deferring task cleared")
            for known in recorded(version, case, "deferring")
        ]
        assert tries == [("execute", False), ("resume", True)] * 2


@pytest.mark.parametrize("version", VERSIONS)
class TestRuns:
    def test_a_run_that_is_queued_again_starts_later_and_is_not_cleared(self, version: str) -> None:
        first, retry = recorded(version, "run queued again before the retry")
        assert counters(retry) == (2, 0, 0)
        assert time_of(first, "start_date") < time_of(retry, "start_date")
        assert time_of(first, "run_after") == time_of(retry, "run_after")

    def test_a_run_that_is_made_again_differs_from_one_queued_again_in_its_date_alone(self, version: str) -> None:
        (before,) = recorded(version, "the run that is changed")
        (again,) = recorded(version, "run deleted and made again")
        assert counters(again) == (1, 1, 0)
        assert time_of(before, "run_after") < time_of(again, "run_after")

    def test_a_task_that_the_dag_lost_stays_in_the_count_of_the_run(self, version: str) -> None:
        (before,) = recorded(version, "the run that is changed")
        (after,) = recorded(version, "this task cleared, another removed from the DAG")
        counts = [
            (call(known, "get_ti_count"), call(known, "get_ti_count", task_ids=known.known["task_ids"]))
            for known in (before, after)
        ]
        assert counts == [(7, 7), (7, 6)]

    def test_a_mapped_task_counts_each_index(self, version: str) -> None:
        counts = {
            call(known, "get_ti_count", task_ids=["mapped"]) for known in recorded(version, "first try", "mapped")
        }
        assert counts == {2}

    def test_what_the_task_made_in_earlier_runs(self, version: str) -> None:
        """Before Airflow 3.2, a task cannot find its other runs."""
        for task_id in ("plain", "mapped"):
            known = recorded(version, "first try, later run", task_id)[0]
            ti = known.task_instance()
            if not hasattr(ti, "get_previous_ti"):
                assert version < "3.2"
                continue
            index = -1 if task_id == "plain" else 0
            previous = ti.get_previous_ti(logical_date=time_of(known, "logical_date"), map_index=index)
            made = call(known, "xcom_pull", task_ids=task_id, run_id=previous.run_id)
            each = ["plain[-1]"] if task_id == "plain" else ["mapped[0]", "mapped[1]"]
            expected = [f"{one}, try 1 of first" for one in each]
            assert (previous.run_id, made if isinstance(made, list) else [made]) == ("first", expected)


@pytest.mark.parametrize("version", recorded_versions("task deleted and run cleared"))
def test_a_deleted_task_instance_counts_from_one(version: str) -> None:
    (before,) = recorded(version, "the run that is changed")
    (queued,) = recorded(version, "task deleted and run queued again")
    (cleared,) = recorded(version, "task deleted and run cleared")
    assert (counters(queued), counters(cleared)) == ((1, 1, 0), (1, 1, 1))
    assert len({time_of(known, "run_after") for known in (before, queued, cleared)}) == 1


@pytest.mark.parametrize("version", VERSIONS)
class TestGivenUp:
    """A process outlives the failure of its try: it ignores Airflow's signal."""

    CASE = "marked failed while it runs, then cleared"

    def test_the_state_says_so_until_the_next_try_runs(self, version: str) -> None:
        stale = [known for known in recorded(version, self.CASE) if counters(known)[0] == 1]
        states = {known.step: state_of(known) for known in stale}
        # Airflow 3.1.8 had killed the process before the next try ran.
        assert states | {"running": "running"} == {"execute": "running", "other": "failed", "running": "running"}

    def test_a_cleared_try_is_restarting(self, version: str) -> None:
        (known,) = [known for known in recorded(version, "cleared while it runs") if known.step == "other"]
        assert state_of(known) == "restarting"


@pytest.mark.parametrize("version", WITH_STORE)
class TestTaskStateStore:
    """Airflow has it from 3.3 on."""

    def test_a_retry_and_a_resumed_try_find_what_was_stored(self, version: str) -> None:
        assert [known.stored for known in recorded(version, "automatic retry")] == [[], [1]]
        assert [known.stored for known in recorded(version, "first try", "deferring")] == [[], [1]]

    def test_a_clear_of_another_task_changes_nothing(self, version: str) -> None:
        assert recorded(version, "another task cleared before the retry")[-1].stored == [1]

    def test_a_clear_discards_it_from_3_4_on(self, version: str) -> None:
        cases = {
            "this task cleared": "plain",
            "one index cleared": "mapped",
            "this task cleared before its retry": "plain",
        }
        found = {case: recorded(version, case, task_id)[-1].stored for case, task_id in cases.items()}
        assert found == dict.fromkeys(cases, [] if version in WITH_LOOPS else [1])

    def test_a_deleted_run_takes_it_along(self, version: str) -> None:
        assert recorded(version, "run deleted and made again")[0].stored == []

    def test_a_try_that_was_given_up_reads_nothing_and_writes_nothing(self, version: str) -> None:
        """Its read says "nothing is stored", and does not fail."""
        (known,) = [known for known in recorded(version, TestGivenUp.CASE) if known.step == "running"]
        assert (known.stored, known.can_store) == ([], False)


@pytest.mark.parametrize("version", WITH_LOOPS)
class TestLoops:
    def test_the_state_of_an_iteration_that_was_given_up_is_that_of_the_next(self, version: str) -> None:
        """And the store takes what it writes: nothing but the list of finished task instances says so."""
        case = "loop, marked failed while the next iteration exists"
        (known,) = [known for known in recorded(version, case, "body.member") if known.step == "finished"]
        assert (known.iteration, state_of(known), known.can_store) == (0, "running", True)

    def test_the_count_is_of_the_newest_iteration(self, version: str) -> None:
        for known in recorded(version, "loop", "body.member"):
            assert call(known, "get_ti_count", task_ids=["body.member"]) == 1

    def test_an_iteration_that_a_clear_repeats_is_a_first_try_that_remembers_nothing(self, version: str) -> None:
        cleared, *repeated = recorded(version, "loop, cleared with later iterations", "body.member")
        assert (cleared.iteration, counters(cleared), cleared.stored) == (0, (2, 1, 2), [])
        assert [(known.iteration, counters(known), known.stored) for known in repeated] == [
            (1, (1, 1, 2), []),
            (2, (1, 1, 2), []),
        ]

    def test_an_xcom_of_a_task_in_a_loop_cannot_be_read_from_another_run(self, version: str) -> None:
        known = recorded(version, "loop, later run", "body.member")[0]
        with pytest.raises(
            CallFailed, match="A loop producer requires an explicit scope or a consumer inside the loop"
        ):
            call(known, "xcom_pull", task_ids="body.member", run_id="first")

    def test_a_pull_sees_no_other_iteration_inside_and_all_of_them_outside(self, version: str) -> None:
        made = [
            {str(one).partition("[")[0] for one in call(known, "xcom_pull", task_ids=others(known))}
            for known in (recorded(version, "loop", "body.mapped")[-1], *recorded(version, "loop", "outside"))
        ]
        members = [f"body.member@{iteration}" for iteration in range(3)]
        assert [made[0].isdisjoint(members[:2]), made[1].issuperset(members)] == [True, True]
