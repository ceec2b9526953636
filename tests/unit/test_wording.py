"""Counts with their nouns, sizes, and texts from outside, of which no secret is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.wording import MAX_LENGTH, format_bytes, pluralize, redact

PHONE, ANSWER, KEY = "+1 (555) 867-5309", "Čapek's 7  swallows", "otk_5f1c09d2e7ab4c"
SECRETS = (PHONE, ANSWER, KEY)


def test_a_short_answer_is_masked_and_withholds_no_message_of_the_service() -> None:
    said = "The answer Rex is too short for Rexford Ltd."
    assert redact(said, ("Rex",)) == "The answer *** is too short for Rexford Ltd."


def test_a_secret_is_masked_in_the_form_in_which_the_service_reads_it() -> None:
    for phone in (PHONE, "+1 555_867-5309"):
        assert redact("the number 15558675309 is not known", (phone,)).startswith("the number *** is")
    assert redact("čapek's 7 SWALLOWS is too long", SECRETS).startswith("*** is")


@pytest.mark.parametrize("length", range(MAX_LENGTH - len(PHONE) - 2, MAX_LENGTH + 2))
def test_no_half_of_a_secret_is_left_by_the_cut(length: int) -> None:
    shown = redact("x" * length + " " + PHONE, SECRETS)
    assert set(shown) <= set("x *")
    assert len(shown) <= MAX_LENGTH


def test_a_text_cannot_forge_a_line_of_the_log() -> None:
    for said in ("a\nb", "a\r\n\tb", "a\x00b", "a\x1b b", "a\u2028b", "a\u200bb", "  a  b  "):
        assert redact(said, SECRETS) == "a b"


@given(st.text(), st.lists(st.text(st.characters(exclude_characters="*"), min_size=5), max_size=3), st.data())
def test_any_text_and_any_secrets(text: str, secrets: list[str], data: st.DataObject) -> None:
    quoted = data.draw(st.sampled_from(secrets)) if secrets else ""
    shown = redact(text + quoted + text, secrets)
    assert shown.isprintable()
    assert len(shown) <= MAX_LENGTH
    assert not any(secret in part for secret in secrets for part in shown.split("***") if secret.strip())


def test_counts_have_their_nouns_and_sizes_are_in_units_of_a_thousand() -> None:
    counts = {0: "0 files", 1: "1 file", 2: "2 files", 21: "21 files"}
    assert {count: pluralize(count, "file") for count in counts} == counts
    sizes = {0: "0 B", 999.6: "1 kB", 1_024: "1.02 kB", 999_600: "1 MB", 10**9: "1 GB", 5 * 10**15: "5,000 TB"}
    assert {size: format_bytes(size) for size in sizes} == sizes
