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
    "report.pdf",
    "two words.txt",
    'say "hi".txt',
    "100%.txt",
    "%41.txt",
    "a;b=c, d.txt",
    "it's.txt",
    "a*b.txt",
    "UTF-8''x.txt",
    '"quoted"',
    ".bashrc",
    "..hidden",
    "name.",
    " leading and trailing ",
    "Bericht März.pdf",
    unicodedata.normalize("NFC", "é.txt"),
    unicodedata.normalize("NFD", "é.txt"),
    "報告.pdf",
    "😀.txt",
    "\u06af\u0632\u0627\u0631\u0634\u200c\u0647\u0627.pdf",  # Persian, with a joiner that changes the form of letters
    "\u0915\u094d\u200d\u0937.txt",  # Devanagari
    "\U0001f468\u200d\U0001f469\u200d\U0001f467.png",  # a family
    "\U0001f642\u200d\u2194\ufe0f \u2764\ufe0f\u200d\U0001f525 \U0001f469\U0001f3fd\u200d\U0001f680.png",
    "1\ufe0f\u20e3 \u203c\ufe0f.txt",
    "\u845b\U000e0100.txt",  # a variant of an ideograph
    "no-break\xa0space\u202fPM.png",  # as macOS names screenshots
    "fullwidth\uff0fslash\uff3cand\uff02quote.txt",
    "℀.txt",
    "filename*=UTF-8''other.txt",
    'a"; filename="b',
    "x" * MAX_NAME_BYTES,
    "é" * 127 + "x",
]

REFUSED = {
    "": "is empty",
    " ": "is empty",
    ".": "is empty",
    "..": "is empty",
    ". .": "is empty",
    "\u3000": "is empty",
    "\xa0.": "is empty",
    "a/b": "path separator",
    "../etc/passwd": "path separator",
    "a\\b": "path separator",
    "a\nb": "control character",
    "a\r\nX-Injected: 1": "control character",
    "a\0b": "control character",
    "a\tb": "control character",
    "a\x7fb": "control character",
    "a\x85b": "control character",
    "a\ud800b": "not valid Unicode",
    "\udcff.txt": "not valid Unicode",
    "x" * (MAX_NAME_BYTES + 1): "over 255 bytes",
    "é" * 128: "over 255 bytes",
    **dict.fromkeys(
        ("a\u202ecod.exe", "a\u2066b\u2069", "a\u2028b", "report\u200b.csv", "\ufeffreport.csv", "re\xadport.csv"),
        "not seen",
    ),
}


def as_the_library_reads_it(header: str) -> str:
    """The standard library's parser, with ``filename*`` preferred as service-api.md, R30, says."""
    message = Message()
    message["Content-Disposition"] = header
    parameters = message.get_params([], "content-disposition")
    (extended,) = (value for name, value in parameters if name == "filename" and isinstance(value, tuple))
    return collapse_rfc2231_value(extended)


def as_an_old_client_reads_it(header: str) -> str:
    """The plain ``filename``, by the grammar of a quoted string."""
    (quoted,) = re.findall(r'; filename="((?:[^"\\]|\\.)*)"', header)
    return str(quoted)


def check_round_trip(name: str) -> None:
    header = attachment(name)
    assert header.isascii()
    assert header.isprintable()
    assert as_the_library_reads_it(header) == name
    assert as_the_service_reads_it(header) == name
    extended = re.fullmatch(
        r"attachment; filename=\"[^\"\\%/]+\"; filename\*=UTF-8''([A-Za-z0-9!#$&+.^_`|~%-]+)", header
    )
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
        assert re.search("empty|separator|control|Unicode|bytes|not seen", refused)
        assert "\n" not in refused
    else:
        check_round_trip(name)


@pytest.mark.parametrize(("name", "reason"), REFUSED.items(), ids=[repr(name[:20]) for name in REFUSED])
def test_names_that_could_not_come_back_are_refused(name: str, reason: str) -> None:
    with pytest.raises(InvalidDelivery, match=reason) as refused:
        attachment(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("plain.txt", "plain.txt"), ("März.pdf", "Marz.pdf"), ('a"b%.txt', "a_b_.txt"), ("報告", "file"),
        ("a\uff0fb", "a_b"), ("\ufb01le.txt", "file.txt"),
    ],
)  # fmt: skip
def test_a_client_that_reads_the_plain_name_gets_the_nearest_in_ascii(name: str, nearest: str) -> None:
    assert as_an_old_client_reads_it(attachment(name)) == nearest
