"""The tests that run with each version of Airflow are there."""

from __future__ import annotations

from support.repository import REPOSITORY
from versions.__main__ import TESTS


def test_every_path_of_a_step_exists() -> None:
    paths = [path.partition("::")[0] for paths in TESTS.values() for path in paths]
    assert [path for path in paths if not (REPOSITORY / path.removeprefix("--ignore=")).exists()] == []
