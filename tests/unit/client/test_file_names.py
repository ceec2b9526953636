"""Names of files: they come back the same, or are refused with a reason (RFC 6266, RFC 8187)."""

from __future__ import annotations

import re
import unicodedata
from email.message import Message
from email.utils import collapse_rfc2231_value
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.new_transfer import MAX_NAME_BYTES, attachment, check_name
from outbound_transfer_sandbox.domain.content_disposition import filename as as_the_service_reads_it

GOOD = [
    "report.pdf", "two words.txt", 'say "hi".txt', "100%.txt", "%41.txt", "a;b=c, d.txt", "it's.txt", "a*b.txt",
    "UTF-8''x.txt", '"quoted"', ".bashrc", "..hidden", "name.", " leading and trailing ", "Bericht März.pdf",
    unicodedata.normalize("NFC", "é.txt"), unicodedata.normalize("NFD", "é.txt"), "報告.pdf", "😀.txt", "℀.txt",
    "\u06af\u0632\u0627\u0631\u0634\u200c\u0647\u0627.pdf",  # Persian, with a joiner that changes letters
    "\u0915\u094d\u200d\u0937.txt", "\U0001f468\u200d\U0001f469\u200d\U0001f467.png",  # Devanagari, a family
    "\U0001f642\u200d\u2194\ufe0f \u2764\ufe0f\u200d\U0001f525 \U0001f469\U0001f3fd\u200d\U0001f680.png",
    "1\ufe0f\u20e3 \u203c\ufe0f.txt", "\u845b\U000e0100.txt",  # the last is a variant of an ideograph
    "no-break\xa0space\u202fPM.png", "fullwidth\uff0fslash\uff3cand\uff02quote.txt",
    "filename*=UTF-8''other.txt", 'a"; filename="b', "x" * MAX_NAME_BYTES, "é" * 127 + "x",
]  # fmt: skip

REFUSED = {
    "is empty": ("", " ", ".", "..", ". .", "\u3000", "\xa0."),
    "path separator": ("a/b", "../etc/passwd", "a\\b"),
    "control character": ("a\nb", "a\r\nX-Injected: 1", "a\0b", "a\tb", "a\x7fb", "a\x85b"),
    "not valid Unicode": ("a\ud800b", "\udcff.txt"),
    "over 255 bytes": ("x" * (MAX_NAME_BYTES + 1), "é" * 128),
    "invisible": ("a\u202ecod.exe", "a\u2066b\u2069", "a\u2028b", "re\u200b.csv", "\ufeffre.csv", "re\xadport.csv"),
}


def as_the_library_reads_it(header: str) -> str:
    """The standard library's parser, with ``filename*`` preferred as service-api.md, R30, says."""
    message = Message()
    message["Content-Disposition"] = header
    parameters = message.get_params([], "content-disposition")
    (extended,) = (value for name, value in parameters if name == "filename" and isinstance(value, tuple))
    return collapse_rfc2231_value(extended)


def check_round_trip(name: str) -> None:
    header = attachment(name)
    assert header.isascii()
    assert header.isprintable()
    assert as_the_library_reads_it(header) == name
    assert as_the_service_reads_it(header) == name
    form = r"attachment; filename=\"[^\"\\%/]+\"; filename\*=UTF-8''([A-Za-z0-9!#$&+.^_`|~%-]+)"
    extended = re.fullmatch(form, header)
    assert extended, header
    assert unquote(extended[1]) == name


def reason_against(name: str) -> str:
    try:
        check_name(name)
    except InvalidDelivery as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("name", GOOD)
def test_awkward_names_come_back_the_same(name: str) -> None:
    check_round_trip(name)


@given(st.text(max_size=300) | st.text("\"\\;%*='/. \n\r\0é\uff0f", max_size=20))
def test_any_name_comes_back_the_same_or_is_refused_with_a_reason(name: str) -> None:
    if refused := reason_against(name):
        assert re.search("empty|separator|control|Unicode|bytes|invisible", refused)
        assert "\n" not in refused
    else:
        check_round_trip(name)


@pytest.mark.parametrize(("reason", "names"), REFUSED.items())
def test_names_that_could_not_come_back_are_refused(reason: str, names: tuple[str, ...]) -> None:
    for name in names:
        assert reason in reason_against(name), repr(name)
        assert "\n" not in reason_against(name)


def test_a_client_that_reads_the_plain_name_gets_the_nearest_in_ascii() -> None:
    nearest = {"plain.txt": "plain.txt", "März.pdf": "Marz.pdf", 'a"b%.txt': "a_b_.txt", "\ufb01le.txt": "file.txt"}
    for name, expected in {**nearest, "報告": "file", "a\uff0fb": "a_b"}.items():
        assert re.findall(r'; filename="((?:[^"\\]|\\.)*)"', attachment(name)) == [expected]
