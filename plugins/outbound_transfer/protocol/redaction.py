"""Redacts secrets in untrusted texts, in whatever form a text quotes them.

Texts are compared by their letters and digits alone: case, accents, width, white space and punctuation do not matter,
so a phone number is recognized by its digits. Encodings are decoded too (percent, JSON and HTML escapes in any layers,
and base64 and hexadecimal within these); a text that quotes a secret in an encoding is withheld as a whole.
"""

from __future__ import annotations

import base64
import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

#: Maximum characters of a redacted text.
MAX_LENGTH: Final = 500

#: Replaces a text that cannot be shown even in part.
WITHHELD: Final = "*** (withheld: it may quote a secret)"

#: Characters of a text that are examined; the rest is never shown.
_MAX_READ: Final = 4_000

#: This many consecutive letters and digits of a secret count as the secret, because a part of it is secret too.
_PIECE_LENGTH: Final = 7

#: Shorter secrets occur in ordinary words; no text is shown for a call that has one.
_MIN_SECRET_LENGTH: Final = 4

#: Maximum decodings of a text; a text with more layers of encodings is withheld.
_MAX_DECODINGS: Final = 200


class _SecretIndex(NamedTuple):
    """The texts to search for.

    :ivar pieces: all runs of ``_PIECE_LENGTH`` characters of the longer secrets.
    :ivar words: the shorter secrets. They can occur in innocent words, so masking just these words would reveal them.
    """

    pieces: frozenset[str]
    words: tuple[str, ...]

    def occur_in(self, text: str) -> bool:
        letters = _normalize(text)
        return any(word in letters for word in self.words) or not self.pieces.isdisjoint(_pieces(letters))


def redact(text: str, secrets: Iterable[str]) -> str:
    """Redact secrets in a text.

    Words that quote a secret become ``***``. The whole text becomes :data:`WITHHELD` if that would not be safe, because
    a secret is short or is quoted in an encoding.

    :return: one printable line of at most :data:`MAX_LENGTH` characters.
    """
    forms = _all_forms(secrets)
    if not text:
        return ""
    if any(len(form) < _MIN_SECRET_LENGTH for form in forms):
        return WITHHELD
    index = _index_of(forms)
    head = text[:_MAX_READ]
    # Mask first and truncate then: a truncated secret would not be recognized.
    masked = _mask_words(head, index.pieces)
    is_truncated = len(text) > _MAX_READ and masked != head
    if forms and (is_truncated or _occurs_in_any_decoding(masked, index)):
        return WITHHELD
    shown = "".join(character if character.isprintable() else " " for character in masked[:MAX_LENGTH])
    return " ".join(shown.split())


def _all_forms(secrets: Iterable[str]) -> set[str]:
    return {form for secret in secrets if secret for form in _secret_forms(secret)}


def _index_of(forms: Iterable[str]) -> _SecretIndex:
    return _SecretIndex(
        frozenset(piece for form in forms for piece in _pieces(form)),
        tuple(form for form in forms if len(form) < _PIECE_LENGTH),
    )


def _secret_forms(secret: str) -> Iterator[str]:
    letters = _normalize(secret)
    yield letters
    digits = "".join(filter(str.isdigit, letters))
    if len(digits) >= _PIECE_LENGTH:
        yield digits  # a phone number may be quoted without its other characters


def _normalize(text: str) -> str:
    """Return the letters and digits of a text in a normalized form."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).upper().casefold())
    letters = "".join(filter(str.isalnum, plain))
    return letters if letters.isascii() else "".join(map(_ascii_digit, letters))


def _ascii_digit(letter: str) -> str:
    return str(unicodedata.decimal(letter, letter))


def _normalize_with_positions(text: str) -> Iterator[tuple[int, str]]:
    """Yield each normalized letter with its position in the text."""
    return ((position, letter) for position, character in enumerate(text) for letter in _normalize(character))


def _pieces(letters: str) -> Iterator[str]:
    return (letters[start : start + _PIECE_LENGTH] for start in range(len(letters) - _PIECE_LENGTH + 1))


def _mask_words(text: str, pieces: frozenset[str]) -> str:
    """Replace every word that contains a part of a secret with stars."""
    positions = list(_normalize_with_positions(text))
    secret = [False] * len(text)
    for start, piece in enumerate(_pieces("".join(letter for _, letter in positions))):
        if piece in pieces:
            first, last = positions[start][0], positions[start + _PIECE_LENGTH - 1][0]
            secret[first : last + 1] = [True] * (last + 1 - first)
    words = [match.span() for match in re.finditer(r"\S+", text)]
    for start, stop in words:
        if any(secret[start:stop]):
            secret[start:stop] = [True] * (stop - start)
    runs = groupby(zip(secret, text, strict=True), key=lambda pair: pair[0])
    return "".join("***" if is_secret else "".join(character for _, character in run) for is_secret, run in runs)


def _occurs_in_any_decoding(text: str, index: _SecretIndex) -> bool:
    return any(number == _MAX_DECODINGS or index.occur_in(decoding) for number, decoding in enumerate(_decodings(text)))


def _decodings(text: str) -> Iterator[str]:
    """Yield the text, its decodings in any order of the encodings, and what base64 or hexadecimal in them contain."""
    seen, pending = {text}, [(text, False)]
    while pending:
        decoding, is_packed = pending.pop()
        yield decoding
        # Each decoding is shorter than its source, so the loop ends.
        found = [(decode(decoding), is_packed) for decode in _DECODERS]
        if not is_packed:
            found += [(packed, True) for packed in _unpack(decoding)]
        pending += [(each, packed) for each, packed in found if each not in seen]
        seen.update(each for each, _ in found)


def _decode_escapes(text: str) -> str:
    text = re.sub(r"(?:\\+u[0-9a-fA-F]{4})+", _decode_utf_16, text)
    text = re.sub(r"(?:\\+(?:x[0-9a-fA-F]{2}|[0-3][0-7]{2}))+", _decode_escaped_bytes, text)
    return re.sub(r"\\+[nrtbfv]", " ", text)


def _decode_utf_16(match: re.Match[str]) -> str:
    units = re.findall(r"u(.{4})", match[0])
    return bytes.fromhex("".join(units)).decode("utf-16-be", "replace")


def _decode_escaped_bytes(match: re.Match[str]) -> str:
    return _decode_bytes(
        bytes(int(byte[1:], 16) if byte[0] == "x" else int(byte, 8) for byte in re.split(r"\\+", match[0])[1:])
    )


def _decode_percents(text: str) -> str:
    # "=" is for quoted-printable.
    return re.sub(
        r"(?:[%=][0-9a-fA-F]{2})+", lambda match: _decode_bytes(bytes.fromhex(match[0].translate(_SIGNS))), text
    )


_SIGNS: Final = {ord("%"): None, ord("="): None}

_DECODERS: Final[tuple[Callable[[str], str], ...]] = (_decode_escapes, html.unescape, _decode_percents)


def _unpack(text: str) -> Iterator[str]:
    """Decode base64 and hexadecimal runs of a text, from each possible start."""
    dense = "".join(text.split())
    runs = re.findall(r"[A-Za-z0-9+/_-]{8,}", dense)
    for skip in range(4):
        yield " ".join(_decode_base64(run[skip:]) for run in runs)
    runs = re.findall(r"[0-9A-Fa-f]{8,}", re.sub(r"0x|[:-]", "", dense))
    for skip in range(2):
        yield " ".join(_decode_bytes(bytes.fromhex(run[skip : len(run) - (len(run) - skip) % 2])) for run in runs)


def _decode_base64(run: str) -> str:
    whole = run + "A" * (-len(run) % 4)
    return base64.b64decode(whole, altchars=b"-_" if set("-_") & set(run) else None).decode(errors="ignore")


def _decode_bytes(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
