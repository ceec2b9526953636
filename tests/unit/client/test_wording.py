"""Texts from outside, of which no secret is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.wording import MAX_LENGTH, redact

PHONE, ANSWER, KEY = "+1 (555) 867-5309", "Čapek's 7  swallows", "otk_5f1c09d2e7ab4c"
SECRETS = (PHONE, ANSWER, KEY)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_quoted_secret_is_masked(secret: str) -> None:
    assert redact(f"The value '{secret}' is wrong, x{secret}y too", SECRETS) == "The value '***' is wrong, x***y too"


def test_a_short_answer_is_masked_and_withholds_no_message_of_the_service() -> None:
    said = "The answer Rex is too short for Rexford Ltd."
    assert redact(said, ("Rex",)) == "The answer *** is too short for Rexford Ltd."


def test_of_two_secrets_the_longer_one_is_masked_whole() -> None:
    assert redact("cinnamon-heron", ("cinnamon", "cinnamon-heron")) == "***"


@pytest.mark.parametrize("length", range(MAX_LENGTH - len(PHONE) - 2, MAX_LENGTH + 2))
def test_no_half_of_a_secret_is_left_by_the_cut(length: int) -> None:
    shown = redact("x" * length + " " + PHONE, SECRETS)
    assert set(shown) <= set("x *")
    assert len(shown) <= MAX_LENGTH


@pytest.mark.parametrize("said", ["a\nb", "a\r\n\tb", "a\x00b", "a\x1b b", "a\u2028b", "a\u200bb", "  a  b  "])
def test_a_text_cannot_forge_a_line_of_the_log(said: str) -> None:
    assert redact(said, SECRETS) == "a b"


@given(st.text(), st.lists(st.text(st.characters(exclude_characters="*"), min_size=5), max_size=3), st.data())
def test_any_text_and_any_secrets(text: str, secrets: list[str], data: st.DataObject) -> None:
    quoted = data.draw(st.sampled_from(secrets)) if secrets else ""
    shown = redact(text + quoted + text, secrets)
    assert shown.isprintable()
    assert len(shown) <= MAX_LENGTH
    assert not any(secret in part for secret in secrets for part in shown.split("***") if secret.strip())
