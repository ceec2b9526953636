"""A person's address is found in whatever form JSON and URLs give it, and nobody else's."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.store.events import erased_content, read_erased_digest
from outbound_transfer.store.personal_data import AddressSearch

ANN = "ann+news@example.com"
SEARCH = AddressSearch(ANN)


def _as_json(text: str) -> str:
    return json.dumps({"x": text})


@given(
    before=st.sampled_from(["", "to ", "<", "=", "\n", "\t", "*", "-", "'", "?to=", "/", "mailto:", "⇒"]),
    after=st.sampled_from(["", " ", ">", ".", "*", "'", "&y=1", ". And", "\n", ",", "\\"]),
    encodings=st.lists(st.sampled_from([_as_json, lambda text: quote(text, safe="")]), max_size=3),
    is_upper=st.booleans(),
)
def test_an_address_is_found_in_any_case_however_it_is_escaped(before, after, encodings, is_upper) -> None:
    text = f"{before}{ANN.upper() if is_upper else ANN}{after}"
    for encode in encodings:
        text = encode(text)
    assert SEARCH.matches(text), text
    assert SEARCH.matches(text.encode())
    assert encodings or "example" in SEARCH.hide_others(text).lower()


def test_an_address_is_found_in_any_script() -> None:
    texts = {
        "𠮷田@example.com": json.dumps("𠮷田@example.com"), "ann@xn--exmple-cua.com": "ann@exämple.com",
        "ann@exämple.com": "ann@xn--exmple-cua.com", "josé@example.com": "jose\u0301@example.com",
        "user@उदाहरण.परीक्षा": "to user@उदाहरण.परीक्षा.",
    }  # fmt: skip
    assert all(AddressSearch(address).matches(text) for address, text in texts.items())
    assert SEARCH.matches(rb"\xff " + ANN.encode())
    assert SEARCH.matches([{"email": ANN}])


def test_the_address_of_another_is_another() -> None:
    for address, *others in (
        ("ann@example.com", "joann@example.com", "jo.ann@example.com", "ann@example.com.au", "ann@example.com-x.de"),
        ("m@example.com", "m&m@example.com"),
        ("hara@example.com", "o'hara@example.com"),
        ("strauß@example.com", "strauss@example.com"),
        ("जय@example.com", "संजय@example.com"),
        ("a@डाटा.भारत", "a@डाटा.भारती", None),
    ):
        for other in others:
            assert not AddressSearch(address).matches(other)
            assert not AddressSearch(address).matches(json.dumps(other))


@pytest.mark.parametrize("at", ["@", "%40", r"\u0040"])
@pytest.mark.parametrize("between", [" ", "|", "/", "&cc=", '", "', "%26cc%3D"])
def test_an_export_has_nobody_else(at: str, between: str) -> None:
    shown = SEARCH.hide_others(f'{{"to": "{ANN}{between}bob{at}example.com"}}')
    assert "bob" not in shown
    assert ANN in shown or "%" in between


@pytest.mark.parametrize(
    "text",
    ["\\" * 200_000, "\\u" * 100_000, "a" + "\u0301" * 100_000 + "\u0323" * 100_000, "a@" * 100_000, "QUJD" * 100_000],
    ids=["backslashes", "escapes", "marks", "at", "word"],
)
def test_a_search_is_linear(text: str) -> None:
    """A quadratic one takes hours."""
    assert not SEARCH.matches(text)
    SEARCH.hide_others(text)


def test_only_erased_content_is_recognized_as_erased() -> None:
    erased = erased_content("0f" * 32)
    assert read_erased_digest(erased) == "0f" * 32
    for other in ("(erased)", "(erased) ann@example.com", f"{erased} ann@example.com", f"{erased}\n", None):
        assert read_erased_digest(other) is None
