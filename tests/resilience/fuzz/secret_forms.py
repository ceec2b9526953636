"""Secrets made by chance, and a judge that looks for them in a text."""

from __future__ import annotations

import random
import string
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import wrap
from typing import Final


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
    # Airflow masks no value of fewer than five characters in a log.
    characters = chance.choice(_ALPHABETS) + string.digits + "  -'&%+<>/\\\"=,."
    return "a" + _some(chance, characters, chance.choice([4, 8, 13, 24])) + "z"


def _phone(chance: random.Random) -> str:
    groups = wrap(_some(chance, string.digits, chance.randint(8, 12)), chance.randint(2, 4))
    between = [" ", "-", ".", " (", ") ", ""]
    return (chance.choice(["+", "", "00"]) + "".join(group + chance.choice(between) for group in groups)).strip()


def told_by(text: str, known: Iterable[Secret]) -> Secret | None:
    """A secret that ``text`` quotes; None where it quotes none."""
    return next((secret for secret in known if secret.value in text), None)
