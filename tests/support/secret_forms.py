"""Secrets, the forms in which a peer may quote one, and a judge that looks for them in a text by rules of its own."""

from __future__ import annotations

import base64
import codecs
import html
import json
import quopri
import random
import re
import string
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from textwrap import wrap
from typing import Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

#: Stands on both sides of what is quoted: a short secret is in many words, and so known by its neighbours.
FENCE: Final = "Zq7"

#: A secret with fewer letters and digits is looked for between fences alone.
_SHORT: Final = 7


@dataclass(frozen=True)
class Secret:
    """One secret.

    :ivar kind: ``transfer key``, ``event key``, ``answer`` or ``phone``.
    """

    kind: str
    value: str


def secrets(seed: int) -> dict[str, Secret]:
    """One of each kind; those of two seeds have nothing in common."""
    chance = random.Random(seed)
    found = {
        "transfer key": "otk_" + _some(chance, string.ascii_letters + string.digits, chance.randint(12, 40)),
        "event key": "obs_" + _some(chance, string.ascii_letters + string.digits + "-._~+/=", chance.randint(12, 40)),
        "answer": _answer(chance),
        "phone": _phone(chance),
    }
    return {kind: Secret(kind, value) for kind, value in found.items()}


def _some(chance: random.Random, characters: str, length: int) -> str:
    return "".join(chance.choice(characters) for _ in range(length))


_ALPHABETS: Final = (
    string.ascii_letters,
    "aäöüßéçñåøşğıİŁžŠ",
    "абвгдежзийклмн",
    "αβγδεζηθικλς",
    "東京都日本語漢字仮名",
)


def _answer(chance: random.Random) -> str:
    characters = chance.choice(_ALPHABETS) + string.digits + "  -'&%+<>/\\\"=,."
    return _some(chance, characters, chance.choice([1, 2, 3, 5, 8, 13, 24])).strip() or "?"


def _phone(chance: random.Random) -> str:
    groups = wrap(_some(chance, string.digits, chance.randint(8, 12)), chance.randint(2, 4))
    between = [" ", "-", ".", " (", ") ", ""]
    return chance.choice(["+", "", "00"]) + "".join(group + chance.choice(between) for group in groups)


def _digits(text: str) -> str:
    return "".join(character for character in text if character in string.digits)


Form = Callable[[str], str]

#: What any secret may be written as.
FORMS: Final[dict[str, Form]] = {
    "as it is": str,
    "upper": str.upper,
    "lower": str.lower,
    "swapped case": str.swapcase,
    "title": str.title,
    "NFC": lambda text: unicodedata.normalize("NFC", text),
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "full width": lambda text: text.translate({at: at + 0xFEE0 for at in range(0x21, 0x7F)}),
    "spaces collapsed": lambda text: " ".join(text.split()),
    "spaces doubled": lambda text: text.replace(" ", "  \t"),
    "a line break in it": lambda text: f"{text[: len(text) // 2]}\r\n {text[len(text) // 2 :]}",
    "zero width in it": lambda text: "\u200b".join(text),
    "spaced out": " ".join,
    "percent": lambda text: quote(text, safe=""),
    "plus": quote_plus,
    "every percent": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "quoted-printable": lambda text: quopri.encodestring(text.encode(), quotetabs=True).decode(),
    "json": lambda text: json.dumps(text)[1:-1],
    "every json": lambda text: "".join(f"\\u{int.from_bytes(unit):04X}" for unit in _utf_16(text)),
    "python": lambda text: ascii(text)[1:-1],
    "bytes": lambda text: repr(text.encode())[2:-1],
    "every byte": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
    "html": html.escape,
    "every html": lambda text: "".join(f"&#{ord(character)};" for character in text),
    "html hex": lambda text: "".join(f"&#x{ord(character):X};" for character in text),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 of more": lambda text: base64.urlsafe_b64encode(f"ann:{text}\n".encode()).decode().rstrip("="),
    "base64 in lines": lambda text: "\n".join(wrap(base64.b64encode(text.encode()).decode(), 8)),
    "hex": lambda text: text.encode().hex(),
    "hex dump": lambda text: text.encode().hex(" ").upper(),
}

#: What only a phone number may be written as.
PHONE_FORMS: Final[dict[str, Form]] = {
    "digits": _digits,
    "without its prefix": lambda text: _digits(text)[-max(len(_digits(text)) - 3, 7) :],
    "national": lambda text: "0" + _digits(text)[-max(len(_digits(text)) - 2, 7) :],
    "dotted": lambda text: ".".join(wrap(_digits(text), 2)),
    "bracketed": lambda text: f"+{_digits(text)[:2]} ({_digits(text)[2:5]}) {'-'.join(wrap(_digits(text)[5:], 3))}",
}


def _utf_16(text: str) -> Iterator[bytes]:
    units = text.encode("utf-16-be")
    return (units[at : at + 2] for at in range(0, len(units), 2))


def told_by(text: str, known: Iterable[Secret]) -> Secret | None:
    """A secret that ``text`` tells to who takes off all encodings that there are; None where it tells none."""
    readings = [(reading, _plain(reading)) for reading in _readings(text)]
    return next((one for one in known if any(_tells(reading, plain, one) for reading, plain in readings)), None)


def _readings(text: str) -> set[str]:
    found, fresh = {text}, {text}
    for _ in range(4):
        fresh = {decoded for one in fresh for decoded in _decoded(one)} - found
        found |= fresh
    return found


def _decoded(text: str) -> Iterator[str]:
    yield from (unquote(text), unquote_plus(text), html.unescape(text), _unescaped(text))
    if "=" in text:
        yield quopri.decodestring(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    if len(text) < 20_000:
        yield from _packed(text)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    try:
        ascii_text = text.encode("ascii", "backslashreplace")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is no escape
            decoded = codecs.decode(ascii_text, "unicode_escape")
        if all(ord(character) < 256 for character in decoded):  # bytes, as Python writes them
            return decoded.encode("latin-1").decode("utf-8", "replace")
        return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except UnicodeDecodeError:
        return text


def _packed(text: str) -> Iterator[str]:
    for token in re.findall(r"[A-Za-z0-9+/_-][A-Za-z0-9+/_\s-]{5,}={0,2}", text):
        dense = re.sub(r"\s|=", "", token).replace("-", "+").replace("_", "/")
        for start in range(4):
            part = dense[start:]
            yield base64.b64decode(part[: len(part) // 4 * 4] + _end(part)).decode("utf-8", "ignore")
    for token in re.findall(r"(?:[0-9a-fA-F]{2}[\s:]?){4,}", text):
        yield bytes.fromhex(re.sub(r"[\s:]", "", token)).decode("utf-8", "ignore")


def _end(part: str) -> str:
    rest = part[len(part) // 4 * 4 :]
    return rest + "=" * (4 - len(rest)) if len(rest) > 1 else ""


def _tells(text: str, plain: str, secret: Secret) -> bool:
    if secret.kind == "phone":
        digits = _digits(secret.value)
        # Whatever has its last seven digits, among punctuation, dials it.
        groups = re.findall(r"\d[\d\W_]+", unicodedata.normalize("NFKC", text))
        return any(digits[-7:] in _digits(group) for group in groups)
    wanted = _plain(secret.value)
    if len(wanted) < _SHORT:
        fence = _plain(FENCE)
        return f"{fence}{wanted}{fence}" in plain
    return wanted in plain or wanted[: max(len(wanted) * 2 // 3, 8)] in plain


@lru_cache(10_000)
def _plain(text: str) -> str:
    """Without case, accents, width, spaces and what is not printed."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold().replace("ı", "i"))
    return "".join(
        character
        for character in folded
        if not character.isspace() and unicodedata.category(character) not in ("Mn", "Cf", "Cc")
    )
