"""Taking secrets out of a text that came from outside, in whatever form it quotes them.

Texts are compared by their letters and digits alone: case, accents, width, spaces, line breaks and punctuation make no
difference, so a phone number is known by its digits. What is behind an encoding is looked at too (percent, JSON, HTML,
in any layers, and base64 and hexadecimal in these); a text that quotes a secret in one is not shown at all.
"""

from __future__ import annotations

import base64
import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

#: Characters of a text that are shown.
MAX_SHOWN: Final = 500

#: What is shown in the place of a text that cannot be shown in part.
WITHHELD: Final = "*** (withheld: it may quote what is secret)"

#: Characters of a text that are read; what is behind them is never shown.
_READ: Final = 4_000

#: So many letters and digits of a secret in a row are taken for the secret: half of one is secret too.
_PIECE: Final = 7

#: A secret with fewer letters and digits is in half of all words, and no text is shown of a call that holds one.
_SHORTEST: Final = 4

#: Readings of one text; a text with so many layers of encodings that it has more is not shown.
_READINGS: Final = 200


class _Known(NamedTuple):
    """What to look for.

    :ivar pieces: all runs of ``_PIECE`` characters of the longer secrets.
    :ivar words: the shorter ones. They may also be a part of an innocent word, so taking them out would tell them.
    """

    pieces: frozenset[str]
    words: tuple[str, ...]

    def are_in(self, text: str) -> bool:
        letters = _letters(text)
        return any(word in letters for word in self.words) or not self.pieces.isdisjoint(_pieces(letters))


def clean(text: str, secrets: Iterable[str]) -> str:
    """``text`` in one printable line of at most 500 characters, without any of ``secrets``.

    The words that quote a secret become ``***``. Where that would not be safe, all of the text is :data:`WITHHELD`: a
    secret is short, or is quoted in an encoding.
    """
    forms = {form for secret in secrets if secret for form in _forms(secret)}
    if not text:
        return ""
    if any(len(form) < _SHORTEST for form in forms):
        return WITHHELD
    known = _Known(
        frozenset(piece for form in forms for piece in _pieces(form)),
        tuple(form for form in forms if len(form) < _PIECE),
    )
    head = text[:_READ]
    # First cleaned and then cut: half of a secret is not known any more.
    starred = _starred(head, known.pieces)
    is_cut = len(text) > _READ and starred != head
    if forms and (is_cut or _is_quoted_in_any_reading(starred, known)):
        return WITHHELD
    shown = "".join(character if character.isprintable() else " " for character in starred[:MAX_SHOWN])
    return " ".join(shown.split())


def _forms(secret: str) -> Iterator[str]:
    letters = _letters(secret)
    yield letters
    digits = "".join(filter(str.isdigit, letters))
    if len(digits) >= _PIECE:
        yield digits  # a phone number that is quoted without what is no digit of it


def _letters(text: str) -> str:
    """The letters and digits of a text, in one form for all their spellings."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).upper().casefold())
    letters = "".join(filter(str.isalnum, plain))
    return letters if letters.isascii() else "".join(map(_ascii_digit, letters))


def _ascii_digit(letter: str) -> str:
    return str(unicodedata.decimal(letter, letter))


def _placed_letters(text: str) -> Iterator[tuple[int, str]]:
    """Each of the letters, with its place in the text."""
    return ((place, letter) for place, character in enumerate(text) for letter in _letters(character))


def _pieces(letters: str) -> Iterator[str]:
    return (letters[start : start + _PIECE] for start in range(len(letters) - _PIECE + 1))


def _starred(text: str, pieces: frozenset[str]) -> str:
    """``text`` with stars for every word, up to the spaces around it, that has a letter of a piece."""
    placed = list(_placed_letters(text))
    secret = [False] * len(text)
    for start, piece in enumerate(_pieces("".join(letter for _, letter in placed))):
        if piece in pieces:
            first, last = placed[start][0], placed[start + _PIECE - 1][0]
            secret[first : last + 1] = [True] * (last + 1 - first)
    words = [match.span() for match in re.finditer(r"\S+", text)]
    for start, end in words:
        if any(secret[start:end]):
            secret[start:end] = [True] * (end - start)
    runs = groupby(zip(secret, text, strict=True), key=lambda pair: pair[0])
    return "".join("***" if is_secret else "".join(character for _, character in run) for is_secret, run in runs)


def _is_quoted_in_any_reading(text: str, known: _Known) -> bool:
    return any(number == _READINGS or known.are_in(reading) for number, reading in enumerate(_readings(text)))


def _readings(text: str) -> Iterator[str]:
    """The text, what it is with its encodings taken off in any order, and what is packed in each of these."""
    seen, waiting = {text}, [(text, False)]
    while waiting:
        reading, is_packed = waiting.pop()
        yield reading
        # Each of these is shorter than what it is made of, so they end.
        found = [(decode(reading), is_packed) for decode in _DECODERS]
        if not is_packed:
            found += [(packed, True) for packed in _unpacked(reading)]
        waiting += [(one, packed) for one, packed in found if one not in seen]
        seen.update(one for one, _ in found)


def _without_escapes(text: str) -> str:
    text = re.sub(r"(?:\\+u[0-9a-fA-F]{4})+", _utf_16, text)
    text = re.sub(r"(?:\\+(?:x[0-9a-fA-F]{2}|[0-3][0-7]{2}))+", _escaped_bytes, text)
    return re.sub(r"\\+[nrtbfv]", " ", text)


def _utf_16(match: re.Match[str]) -> str:
    units = re.findall(r"u(.{4})", match[0])
    return bytes.fromhex("".join(units)).decode("utf-16-be", "replace")


def _escaped_bytes(match: re.Match[str]) -> str:
    return _text_of(
        bytes(int(byte[1:], 16) if byte[0] == "x" else int(byte, 8) for byte in re.split(r"\\+", match[0])[1:])
    )


def _without_percents(text: str) -> str:
    # "=" is the sign of quoted-printable.
    return re.sub(r"(?:[%=][0-9a-fA-F]{2})+", lambda match: _text_of(bytes.fromhex(match[0].translate(_SIGNS))), text)


_SIGNS: Final = {ord("%"): None, ord("="): None}

_DECODERS: Final[tuple[Callable[[str], str], ...]] = (_without_escapes, html.unescape, _without_percents)


def _unpacked(text: str) -> Iterator[str]:
    """What the base64 and the hexadecimal digits of a text hold, from whichever character they begin."""
    dense = "".join(text.split())
    runs = re.findall(r"[A-Za-z0-9+/_-]{8,}", dense)
    for skip in range(4):
        yield " ".join(_base64(run[skip:]) for run in runs)
    runs = re.findall(r"[0-9A-Fa-f]{8,}", re.sub(r"0x|[:-]", "", dense))
    for skip in range(2):
        yield " ".join(_text_of(bytes.fromhex(run[skip : len(run) - (len(run) - skip) % 2])) for run in runs)


def _base64(run: str) -> str:
    whole = run + "A" * (-len(run) % 4)
    return base64.b64decode(whole, altchars=b"-_" if set("-_") & set(run) else None).decode(errors="ignore")


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
