"""Run along with the tests of an installed wheel: it is the wheel that they test."""

from __future__ import annotations

import sys
from pathlib import Path

import outbound_transfer
import outbound_transfer_sandbox


def test_both_packages_are_the_installed_ones() -> None:
    for package in (outbound_transfer, outbound_transfer_sandbox):
        assert package.__file__
        assert Path(package.__file__).is_relative_to(sys.prefix)
        places = [Path(entry).resolve() / package.__name__ for entry in sys.path]
        assert len({place for place in places if place.is_dir()}) == 1
