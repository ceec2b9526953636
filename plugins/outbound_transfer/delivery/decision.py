"""What an attempt of a delivery does next: one table, from what it knows to what it does.

A draft is a token that the service burns once (service-api.md, R36, R37): sending it twice is harmless. So:

- Never make a second draft of a delivery while somebody may still send the first.
- One draft, one writer: an attempt never continues the draft of another one. It discards that draft, and the service's
  response is the proof: 204, and it can no longer be sent or filled; 409, and it was sent.

:func:`decide` is called again after each action, with what that action has shown, until it says ``CREATE``, ``RESUME``
or ``RETURN``, or refuses. Everything here is pure; :mod:`.delivery` reads, decides and acts.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple


class Phase(StrEnum):
    """How far a delivery has come, as its row says."""

    EMPTY = "empty"  # no draft that anybody can send
    DRAFT = "draft"  # the task that makes it is at work; no send has begun
    HANDED_ON = "handed_on"  # its files are complete, or other tasks attach them; no send is under way or in doubt
    SENDING = "sending"  # stored before each send call: it may be sent at any moment, or was; its files stay
    DISCARDING = "discarding"  # an attempt has read it as a draft, and deletes it


class Seen(Enum):
    """What the service shows under the row's transfer id."""

    NOTHING_YET = "not read yet"
    DRAFT = "a draft"
    SENT = "a sent transfer"
    GONE = "404, with the API key that made it"
    ELSEWHERE = "the connection leads to another account, or 404 with another API key"


class Act(Enum):
    """What an attempt does next."""

    READ = "read the transfer"
    DISCARD = "delete the draft"
    FORGET = "empty the row"
    RESUME = "send the draft that this attempt has filled"
    CREATE = "create a draft"
    RETURN = "return the sent transfer"


class Refuse(Enum):
    """Why a delivery fails without a retry. Nothing is sent, and the text says what to do."""

    OTHER_INPUT = (
        "{subject} has already delivered transfer {id}, with other input: {differences}. Nothing is sent. "
        "To deliver this, {another}."
    )
    ELSEWHERE = (
        "An earlier attempt sent, or may have sent, transfer {id} in account {then}. The connection leads to {now}, "
        "or has another user's API key. Nothing is sent. Correct the connection; or, if it was not sent there, "
        "{another}."
    )
    IN_DOUBT = (
        "An earlier attempt sent, or may have sent, transfer {id}, and the service no longer shows it. "
        "Nothing is sent. Look in the service's web application; if it was not sent, {another}."
    )


class Known(NamedTuple):
    """Facts that an attempt has gathered."""

    phase: Phase
    seen: Seen = Seen.NOTHING_YET
    other_input: bool = False  # the task is asked to deliver something else than the row is about
    has_filled: bool = False  # this attempt has filled the draft, and was deferred before its send


class Rule(NamedTuple):
    """A row of the table: the values for which it applies, by field of :class:`Known`; others may have any value."""

    then: Act | Refuse
    why: str
    when: dict[str, tuple[Any, ...]]


def _rule(then: Act | Refuse, why: str, **when: Any) -> Rule:
    return Rule(then, why, {name: value if isinstance(value, tuple) else (value,) for name, value in when.items()})


#: Phases in which no send of the draft has begun.
UNSENT: Final = (Phase.DRAFT, Phase.HANDED_ON)

_STORED: Final = (*UNSENT, Phase.SENDING, Phase.DISCARDING)

#: The first rule that applies decides.
RULES: Final = (
    _rule(Act.READ, "the service knows what became of it", phase=_STORED, seen=Seen.NOTHING_YET),
    _rule(Act.FORGET, "nobody has begun to send it", phase=UNSENT, seen=(Seen.GONE, Seen.ELSEWHERE)),
    _rule(Act.FORGET, "it was deleted as a draft", phase=Phase.DISCARDING, seen=Seen.GONE),
    _rule(Refuse.OTHER_INPUT, "something else was delivered", seen=Seen.SENT, other_input=True),
    _rule(Act.RETURN, "it is delivered", seen=Seen.SENT),
    _rule(Refuse.ELSEWHERE, "it may be sent there", seen=Seen.ELSEWHERE),
    _rule(Refuse.IN_DOUBT, "it may have been sent, and removed since", seen=Seen.GONE),
    _rule(Act.RESUME, "this attempt has filled it", seen=Seen.DRAFT, has_filled=True, other_input=False),
    _rule(Act.DISCARD, "its deletion proves that nobody sends it", seen=Seen.DRAFT),
    _rule(Act.CREATE, "nobody has sent it, and nobody can"),
)


def decide(known: Known) -> Act | Refuse:
    applying = (rule for rule in RULES if all(getattr(known, name) in values for name, values in rule.when.items()))
    return next(applying).then
