"""Faults of uploads that run at once, in small: ``make test-faults`` runs every schedule."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.delivery.decision import Action
from resilience.fault_matrix.matrix import Harness
from resilience.fault_matrix.mutants import instead
from resilience.fault_matrix.uploads import UploadSchedule, run_upload_schedule, upload_schedules

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def harness(tmp_path_factory: Any) -> Iterator[Harness]:
    with Harness(Path(tmp_path_factory.mktemp("uploads"))) as harness:
        yield harness


@pytest.mark.parametrize("schedule", random.Random(7).sample(upload_schedules(), 80), ids=str)
def test_no_fault_of_an_upload_breaks_a_promise(harness: Harness, schedule: UploadSchedule) -> None:
    assert run_upload_schedule(harness, schedule).violations == ()


# Tests of the tests: with a safeguard taken out, the matrix must find it.


def violations(harness: Harness, schedules: list[UploadSchedule]) -> str:
    return "; ".join(each for schedule in schedules for each in run_upload_schedule(harness, schedule).violations)


DEATHS = [each for each in upload_schedules() if each.fault is None and each.held == "before"]


def test_the_matrix_finds_a_draft_with_two_writers(harness: Harness, monkeypatch: Any) -> None:
    instead(monkeypatch, Action.RESUME, Action.DISCARD)

    assert violations(harness, DEATHS)
