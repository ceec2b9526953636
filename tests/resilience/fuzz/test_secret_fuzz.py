"""The search for secrets in small, and that it can find one.

Longer: ``python -m resilience.fuzz.secret_fuzz --seconds 600``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outbound_transfer.client import transport
from outbound_transfer.hooks import outbound_transfer
from resilience.fuzz.secret_fuzz import ASKERS, Case, Fuzz, search
from resilience.fuzz.secret_places import FEED_PLACES, PLACES
from resilience.fuzz.secret_tasks import RECIPIENTS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("asker", ASKERS)
def test_no_asker_leaves_a_secret(tmp_path: Path, asker: str) -> None:
    counts = search(13, 10, tmp_path, asker=[asker])
    assert counts["quoted"]


@pytest.mark.parametrize("place", PLACES | FEED_PLACES)
def test_no_place_of_an_answer_brings_a_key_out(tmp_path: Path, place: str) -> None:
    Fuzz(tmp_path).check(Case(7, "event key", place, "client"))


@pytest.mark.parametrize("recipients", RECIPIENTS)
def test_no_way_of_giving_recipients_shows_a_phone(tmp_path: Path, recipients: str) -> None:
    Fuzz(tmp_path).check(Case(7, "phone", "message", "deliver", recipients))


def test_the_search_finds_a_secret_that_an_error_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "redact", lambda text, known: text)
    with pytest.raises(AssertionError, match="is in the error"):
        search(1, 20, tmp_path, asker=["deliver"], place=["message"])


def test_the_search_finds_a_key_that_a_log_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound_transfer, "mask_secret", lambda secret: None)
    with pytest.raises(AssertionError, match="the event key is in the log"):
        Fuzz(tmp_path).check(Case(7, "event key", "header", "events"))
