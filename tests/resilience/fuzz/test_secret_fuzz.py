"""The search for secrets in small, and that it can find one.

Longer: ``python -m resilience.fuzz.secret_fuzz --seconds 600``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.protocol import messages
from resilience.fuzz.secret_fuzz import ASKERS, Case, Fuzz, search
from resilience.fuzz.secret_places import FEED_PLACES, PLACES
from resilience.fuzz.secret_tasks import RECIPIENTS
from support.secret_forms import FENCE, FORMS, PHONE_FORMS, Secret, secrets, told_by

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("asker", ASKERS)
def test_no_asker_leaves_a_secret(tmp_path: Path, asker: str) -> None:
    counts = search(13, 10, tmp_path, asker=[asker])
    assert counts["quoted"]


@pytest.mark.parametrize("asker", ["client", "async client"])
@pytest.mark.parametrize("place", PLACES | FEED_PLACES)
def test_no_place_of_an_answer_brings_a_key_out(tmp_path: Path, place: str, asker: str) -> None:
    Fuzz(tmp_path).check(Case(7, "event key", "as it is", place, asker))


@pytest.mark.parametrize("recipients", RECIPIENTS)
def test_no_way_of_giving_recipients_shows_a_phone(tmp_path: Path, recipients: str) -> None:
    Fuzz(tmp_path).check(Case(7, "phone", "digits", "message", "deliver", recipients))


@pytest.mark.parametrize("kind", ["transfer key", "event key", "answer", "phone"])
@pytest.mark.parametrize("form", FORMS | PHONE_FORMS)
def test_the_judge_knows_every_form(form: str, kind: str) -> None:
    if form in PHONE_FORMS and kind != "phone":
        return
    for number in range(5):
        secret = secrets(number)[kind]
        if len(secret.value) >= 10:
            quoted = (FORMS | PHONE_FORMS)[form](secret.value)
            assert told_by(f"The value {FENCE} {quoted} {FENCE} is wrong", [secret]), quoted


def test_the_judge_finds_nothing_in_what_tells_nothing() -> None:
    known = [secret for number in range(5) for secret in secrets(number).values()]
    text = "2026-07-30T12:00:00 https://127.0.0.1:54321/ *** (withheld: it may quote a secret) " * 5
    assert told_by(text, known) is None
    assert told_by(f"{FENCE}no{FENCE}", [Secret("answer", "no")])
    assert not told_by("no", [Secret("answer", "no")])


def exactly(text: str, known: Any) -> str:
    for secret in known:
        text = text.replace(secret, "***")
    return text[:500]


def test_the_search_finds_a_form_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "redact", exactly)
    with pytest.raises(AssertionError, match="is in the"):
        search(1, 100, tmp_path, place=["message"])
