"""A secret is known in every form that it may come back in, and a text without one is shown as it is."""

from __future__ import annotations

import base64
import html
import json
import quopri
import unicodedata
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.protocol.redaction import MAX_LENGTH, WITHHELD, redact

PHONE, ANSWER, KEY = "+1 (555) 867-5309", "Čapek's 7 swallows", "otk_5f1c09d2e7ab4c"
SECRETS = (PHONE, ANSWER, KEY)


@pytest.mark.parametrize(
    "quoted",
    [
        "15558675309",
        "5558675309",
        "(555) 867 5309",
        "001-555-867-5309",
        "1.555.867/5309",
        "٠٠١٥٥٥٨٦٧٥٣٠٩",
        "555\n867\n5309",
        ANSWER.upper(),
        ANSWER.casefold(),
        "capeks7swallows",
        unicodedata.normalize("NFD", ANSWER),
        "Čapek\u2019s  7\r\n\tswallows",
        "Čapek's 7 swal\u200blows",
        KEY.upper(),
        KEY[:9],
        KEY[-9:],
    ],
)
def test_another_spelling_is_known(quoted: str) -> None:
    assert redact(f"The value {quoted} is wrong", SECRETS).replace("*** ", "") == "The value is wrong"


ENCODINGS: dict[str, Callable[[str], str]] = {
    "percent": quote,
    "plus": quote_plus,
    "every percent": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "twice percent": lambda text: quote(quote(text)),
    "quoted-printable": lambda text: quopri.encodestring(text.encode()).decode(),
    "json": lambda text: "".join(f"\\u{ord(character):04x}" for character in text),
    "json in json": lambda text: json.dumps(json.dumps("\U0001d5ba" + text)),
    "bytes": lambda text: repr(text.encode()),
    "every byte": lambda text: "".join(f"\\x{byte:02X}" for byte in text.encode()),
    "octal": lambda text: "".join(f"\\{byte:03o}" for byte in text.encode()),
    "html": html.escape,
    "html numbers": lambda text: "".join(f"&#{ord(character)};" for character in text),
    "html hex in percent": lambda text: quote("".join(f"&#x{ord(character):x};" for character in text)),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 of more": lambda text: base64.urlsafe_b64encode(f"ü>?user:{text}".encode()).decode().rstrip("="),
    "base64 in lines": lambda text: base64.encodebytes(b"x" * 50 + text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "hex in json": lambda text: json.dumps({"dump": text.encode().hex(":")}),
    "xxd": lambda text: text.encode().hex(" ", 2),
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_secret_in_an_encoding_is_not_shown(encoding: str, secret: str) -> None:
    quoted = ENCODINGS[encoding](secret)
    shown = redact(f"The value ({quoted}) is wrong", SECRETS)
    assert shown in (WITHHELD, "The value *** is wrong", "The value *** *** is wrong", "The value *** *** *** is wrong")


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
