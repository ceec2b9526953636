"""A sample of `make test-crash-ingest` where a reset removes rows: real processes, really killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.crash_ingest.ingest import (
    MOMENTS,
    Account,
    Target,
    Work,
    ingest,
    kill_everywhere,
    reset_and_ingest,
    target_of,
)
from support.object_storage import running_s3

pytestmark = pytest.mark.slow


def check(account: Account) -> None:
    assert account.wrong == []
    assert account.kills > 3
    assert len(account.left) > 1


@pytest.fixture
def local(tmp_path: Path) -> Target:
    return target_of("objects", tmp_path, None)


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[Target]:
    with running_s3() as endpoint:
        yield target_of("objects-s3", tmp_path, lambda _: endpoint)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_ingest_leaves_whole_pages_and_the_next_run_loads_the_rest(local: Target, moment: str) -> None:
    check(kill_everywhere(local, moment, every=4))


@pytest.mark.parametrize("work", [ingest, reset_and_ingest])
def test_so_it_is_in_s3(s3: Target, work: Work) -> None:
    check(kill_everywhere(s3, "after", every=2, work=work))


def test_a_killed_reset_leaves_whole_pages(local: Target) -> None:
    check(kill_everywhere(local, "before", every=4, work=reset_and_ingest))


def test_a_killed_reset_of_an_iceberg_table_is_whole_or_not_there(tmp_path: Path) -> None:
    check(kill_everywhere(target_of("iceberg", tmp_path, None), "after", every=19, work=reset_and_ingest))
