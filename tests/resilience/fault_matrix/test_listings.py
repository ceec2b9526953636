"""Faults of listings in small: every one at a search, some of them at a whole delivery; and tests that they are found.

All of them: :class:`resilience.fault_matrix.listings.Listings`.
"""

from __future__ import annotations

import glob
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.files import sources
from resilience.fault_matrix.listings import PATTERNS, ListingFault, Listings, vanishing

pytestmark = pytest.mark.slow

SEED = 13


@pytest.fixture(scope="module")
def listings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listings]:
    with Listings(tmp_path_factory.mktemp("listings")) as listings:
        yield listings


@pytest.mark.parametrize("place", ["local", "memory", "s3"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_search_without_faults_finds_what_glob_finds(listings: Listings, place: str, pattern: str) -> None:
    with listings.at(place) as at:
        found = sources.resolve_files(f"{at.root}/{pattern}")
    assert sorted(source.name for source in found) == sorted(path.name for path in listings.meant(pattern))


@pytest.mark.parametrize(("place", "least", "many"), [("local", 500, 500), ("memory", 100, 500), ("s3", 200, 60)])
def test_no_fault_of_a_search_leaves_out_a_file(listings: Listings, place: str, least: int, many: int) -> None:
    faults = [fault for fault in listings.schedules(place) if not fault.lasting]
    assert len(faults) >= least
    for fault in random.Random(SEED).sample(faults, min(many, len(faults))):
        assert listings.search(fault) == []


@pytest.mark.parametrize("place", ["local", "memory", "s3"])
def test_no_fault_of_a_delivery_leaves_out_a_file(listings: Listings, place: str) -> None:
    faults = list(listings.schedules(place))
    for fault in random.Random(SEED).sample(faults, 8):
        outcome = listings.run(fault)
        assert not outcome.violations, f"{outcome.name}: {outcome.violations}"
        if fault.lasting:
            assert outcome.result == "failed, not sent"


def test_what_vanishes_in_the_midst_of_a_search_is_not_half_found(tmp_path: Path) -> None:
    assert list(vanishing(tmp_path)) == []


# The faults can find something.


def found_by(listings: Listings, place: str) -> list[ListingFault]:
    """The faults of one try that show a wrong, in a search and in a delivery."""
    faults = [fault for fault in listings.schedules(place) if not fault.lasting]
    found = [fault for fault in random.Random(SEED).sample(faults, min(40, len(faults))) if listings.search(fault)]
    assert any(violation.startswith("sent {") for violation in listings.run(found[0]).violations)
    return found


def test_the_faults_find_a_search_by_glob(listings: Listings, monkeypatch: Any) -> None:
    def matches(pattern: str) -> list[str]:
        return sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))

    monkeypatch.setattr(sources, "match_local", matches)
    assert {fault.question.what for fault in found_by(listings, "local")} == {"list", "look at"}
