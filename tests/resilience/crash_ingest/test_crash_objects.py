"""A sample of `make test-crash-objects`: real processes, really killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.crash_ingest.ingest import MOMENTS
from resilience.crash_ingest.objects import ingest, kill_everywhere, local_target, reset_and_ingest, s3_target

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_ingest_leaves_whole_pages_and_the_next_run_loads_the_rest(tmp_path: Path, moment: str) -> None:
    account = kill_everywhere(local_target(tmp_path), moment, every=7)
    assert account.wrong == []
    assert account.kills > 3
    assert len(account.left) > 1


@pytest.mark.parametrize("work", [ingest, reset_and_ingest])
def test_so_it_is_in_s3(work) -> None:
    with s3_target() as target:
        account = kill_everywhere(target, "after", every=5, work=work)
    assert account.wrong == []
    assert account.kills > 3
    assert len(account.left) > 1


def test_a_killed_reset_leaves_a_chain(tmp_path: Path) -> None:
    account = kill_everywhere(local_target(tmp_path), "before", every=8, work=reset_and_ingest)
    assert account.wrong == []
    assert account.kills > 3
