"""A secret is known in every form that it may come back in, and a text without one is shown as it is."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.protocol.redaction import MAX_LENGTH, WITHHELD, redact
from support.secret_forms import FORMS, PHONE_FORMS, secrets, told_by

PHONE, ANSWER, KEY = "+1 (555) 867-5309", "Čapek's 7 swallows", "otk_5f1c09d2e7ab4c"
SECRETS = (PHONE, ANSWER, KEY)


@pytest.mark.parametrize("quoted", ["001-555-867-5309", "555\n867\n5309", ANSWER.upper(), KEY[:9], KEY[-9:]])
def test_the_words_that_quote_a_secret_are_masked(quoted: str) -> None:
    assert redact(f"The value {quoted} is wrong", SECRETS).replace("*** ", "") == "The value is wrong"


@pytest.mark.parametrize("kind", secrets(0))
@pytest.mark.parametrize("form", FORMS | PHONE_FORMS)
def test_a_secret_in_any_form_is_not_shown(form: str, kind: str) -> None:
    for number in range(5):
        secret = secrets(number)[kind]
        shown = redact(f"The value ({(FORMS | PHONE_FORMS)[form](secret.value)}) is wrong", [secret.value])
        assert shown != WITHHELD or len(secret.value) < 10 or form not in ("as it is", "upper", "lower")
        assert told_by(shown, [secret]) is None


@pytest.mark.parametrize("length", range(MAX_LENGTH - len(PHONE) - 2, MAX_LENGTH + 2))
def test_no_half_of_a_secret_is_left_by_the_cut(length: int) -> None:
    shown = redact("x" * length + " " + PHONE, SECRETS)
    assert set(shown) <= set("x *")
    assert len(shown) <= MAX_LENGTH


def test_what_is_not_read_is_not_shown() -> None:
    assert redact(f"{KEY} " * 1_000 + "x" * 5_000, SECRETS) == WITHHELD


@pytest.mark.parametrize("short", ["a", "no", "42", "!!!", "🐟", "-1-"])
def test_a_call_with_a_short_secret_shows_nothing(short: str) -> None:
    assert redact("Something else", (short,)) == WITHHELD
    assert redact("", (short,)) == ""


@pytest.mark.parametrize(("said", "shown"), [("the answer rome", WITHHELD), ("of no use", "of no use")])
def test_a_short_secret_is_not_revealed_by_its_gap(said: str, shown: str) -> None:
    assert redact(said, ("Rome",)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "recipients[1].email is not an address",
        "The file is 104 MB; the limit is 100 MB",
        "Rate limit exceeded, retry at 2026-07-30T12:00:00.123Z (request 8f14e45f-ceea-467f-9575-0b0e1c2d3e4f)",
        "<html><body>502 Bad&nbsp;Gateway</body></html>",
        "50 % off = \\o/",
        "ünïcödé ✓",
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redact(text, SECRETS) == text


def test_without_secrets_any_text_is_shown() -> None:
    assert redact(quote("a b") + " %25" * 300, ()) == (quote("a b") + " %25" * 300)[:MAX_LENGTH].strip()


@given(st.text(), st.lists(st.text(), max_size=3))
def test_any_text_and_any_secrets(text: str, secrets: list[str]) -> None:
    shown = redact(text, secrets)
    assert shown.isprintable()
    assert len(shown) <= MAX_LENGTH
    assert not any(secret in shown.replace(WITHHELD, "").replace("***", "") for secret in secrets if secret.strip())


LAYERS = ["%41", "%25", "\\u0041", "\\", "&amp;", "&#37;", "=3D", "YWJj", " ", "é"]


@given(st.lists(st.sampled_from(LAYERS), max_size=2_000))
def test_many_layers_of_encodings_terminate(parts: list[str]) -> None:
    assert len(redact("".join(parts), SECRETS)) <= MAX_LENGTH
