"""What a try of a delivery does next: one table, from what it knows to what it does.

A draft is a token that the service burns once (service-api.md, R36, R37): sending the same draft twice is harmless.
Two rules follow, and the table is made of them:

- Never make a second draft of a delivery while somebody may still send the first.
- One draft, one writer: a try continues a draft only if its last writer has said that it stopped (``HANDED_ON``).
  Otherwise it discards the draft. The service's response to that is the proof: 204, and nobody can send or fill it any
  more; 409, and it was sent.

:func:`decide` is called again after each action, with what that action has shown and what is remembered then
(:meth:`.Memory.after`: DISCARD and FORGET leave EMPTY, and the service is asked anew), until it says ``SEND`` or gives
an answer. Everything here is pure; :mod:`.delivery` gathers the evidence and acts.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Phase(Enum):
    """How far the newest try has come, as the memory of the delivery says."""

    EMPTY = "empty"  # nothing that anybody can send is remembered; also if the memory is lost
    DRAFT = "draft"  # its writer may still work on it
    HANDED_ON = "handed_on"  # its writer has stopped, with no call in doubt, such as a send answered with 503
    SENDING = "sending"  # announced before the first attempt: it may be applied, or was; the service is asked which


class Step(Enum):
    """When the table is read."""

    PREPARE = "before there is a draft to fill"
    SEND = "before each attempt at the send, after any wait"  # a refusal discards the draft; 409, and it was sent


class Input(Enum):
    """What the task is asked to deliver, beside what the memory is about.

    Files are compared with those of a draft that was handed on, once it is retrieved, and with those of a sent transfer
    before it is returned.
    """

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"  # the secrets cannot be compared: the connection's key was replaced


class ById(Enum):
    """What the service shows under the remembered id."""

    NOT_RETRIEVED = "not retrieved"
    DRAFT = "draft"
    SENT = "sent"
    GONE = "gone"  # 404, or the id of another transfer now
    DISCARDED = "discarded"  # 404, and a task of the run has removed it as a draft
    HIDDEN = "hidden"  # it was made in another account, or the connection's new key does not see it


class Search(Enum):
    """Whether the service lists a sent transfer that may be this delivery.

    Those of other runs and delivery keys do not count, nor unequal ones of other tasks. Those of other indexes do:
    nobody knows which index has sent which, so equal items are refused.
    """

    NOT_SEARCHED = "not searched"
    NONE = "none"
    FOUND = "found"
    IMPOSSIBLE = "impossible"  # it may have been sent where the connection does not lead any more


class Check(Enum):
    """What a check right before the send says."""

    OPEN = "open"
    YES = "yes"
    NO = "no"


class Action(Enum):
    """What a try does next."""

    RETRIEVE = "retrieve the remembered transfer"
    SEARCH = "list the sent transfers"
    CREATE = "create a draft"
    RESUME = "continue with the draft"
    DISCARD = "discard the draft"
    FORGET = "forget the draft"
    CHECK = "check what must hold for the send"
    CONFIRM = "ask Airflow whether this try is still wanted"
    RETURN = "return the sent transfer"  # after a clear, only with the same files: otherwise other input is refused
    REFUSE = "refuse"
    STOP = "stop: another try has taken over"
    SEND = "send"


class Reason(Enum):
    """Why a delivery is refused. Nothing is sent, and the text says what to do."""

    OTHER_INPUT = (
        "{subject} has already delivered transfer {transfer_id}, with other input: {differences}. Nothing is sent. "
        "To deliver this, {another}."
    )
    MADE_ELSEWHERE = (
        "Transfer {transfer_id} was sent by an earlier try, or may have been, in account {then}, and the connection "
        "leads to {now}, or has another user's key. Nothing is sent. Correct the connection; or, if it was not sent "
        "there, {another}."
    )
    IN_DOUBT = (
        "Transfer {transfer_id} was sent by an earlier try, or may have been, and the service does not show it any "
        "more. Nothing is sent. Look in the service's web application; if it was not sent, {another}."
    )
    MAY_BE_SENT = (
        "Transfer {transfer_id} may be this very delivery: it has its subject and recipients, and files of it, and "
        "another try, index or task may have sent it. Nothing is sent. If it is another delivery, {another}."
    )
    OTHER_KEY = (
        "Transfer {transfer_id} was sent, or may have been, under the delivery_key or in the account that this task "
        "had before. Nothing is sent. Correct the delivery_key or the connection; or, to deliver this, trigger a new "
        "DAG run."
    )
    CANNOT_SEARCH = (
        "This may have been sent in account {then}, where the connection led before, or with another key, and what "
        "was sent there cannot be listed now. Nothing is sent. Correct the connection; or, if it was not sent there, "
        "{another}."
    )


class Evidence(NamedTuple):
    """What a try knows when it decides.

    :ivar question: whether another index or task of the run, or a try whose memory is lost, may have sent this very
        delivery. In every try but the first one of a run that was never cleared, it is open for a mapped task, also
        where the index has its memory, as items may have changed places, and for input other than what is remembered.
        Once open, it stays open for later tries.
    :ivar is_outdated: whether what the delivery was made from has changed, so that it must be chosen again: OPEN before
        each attempt of a redelivery, NO for other deliveries.
    :ivar is_wanted: whether Airflow still runs this try, and the memory is still its own.
    """

    phase: Phase = Phase.EMPTY
    input: Input = Input.SAME
    by_id: ById = ById.NOT_RETRIEVED
    question: bool = False
    search: Search = Search.NOT_SEARCHED
    is_outdated: Check = Check.NO
    is_wanted: Check = Check.OPEN


class Decision(NamedTuple):
    """What to do next, and of a refusal the reason."""

    action: Action
    reason: Reason | None = None


class Rule(NamedTuple):
    """One line of the table.

    :ivar why: the reason, in a sentence.
    :ivar conditions: the values of a field of the evidence with which the row applies; a field that is absent may have
        any.
    """

    why: str
    then: Decision
    conditions: dict[str, tuple[object, ...]]

    def applies(self, evidence: Evidence) -> bool:
        return all(getattr(evidence, field) in values for field, values in self.conditions.items())


def _rule(why: str, then: Action | Reason, **conditions: object) -> Rule:
    decision = Decision(Action.REFUSE, then) if isinstance(then, Reason) else Decision(then)
    return Rule(
        why, decision, {name: value if isinstance(value, tuple) else (value,) for name, value in conditions.items()}
    )


_SENDABLE: Final = (Phase.DRAFT, Phase.HANDED_ON, Phase.SENDING)

#: What the remembered id shows.
_BY_ID: Final = (
    _rule("the service knows what became of it", Action.RETRIEVE, phase=_SENDABLE, by_id=ById.NOT_RETRIEVED),
    _rule("it was not sent, and cannot be any more", Action.FORGET, by_id=ById.DISCARDED),
    _rule("nobody can reach it any more", Action.FORGET, by_id=(ById.GONE, ById.HIDDEN), phase=Phase.HANDED_ON),
    _rule("nobody can reach it any more", Action.FORGET, by_id=ById.GONE, phase=Phase.DRAFT),
    _rule("something else was delivered", Reason.OTHER_INPUT, by_id=ById.SENT, input=Input.OTHER),
    _rule("it is delivered", Action.RETURN, by_id=ById.SENT),
    _rule("it may be sent there, or have been", Reason.MADE_ELSEWHERE, by_id=ById.HIDDEN),
    _rule("it may have been sent, and removed since", Reason.IN_DOUBT, by_id=ById.GONE),
    _rule("its writer may still work on it", Action.DISCARD, by_id=ById.DRAFT, phase=(Phase.DRAFT, Phase.SENDING)),
    _rule("it is not what is wanted", Action.DISCARD, by_id=ById.DRAFT, input=(Input.OTHER, Input.UNKNOWN)),
    _rule("its writer has stopped", Action.RESUME, by_id=ById.DRAFT),
)

#: Whether it was sent by somebody else, or by a try that nothing is remembered of: asked before a draft is created, to
#: save an upload, and before each attempt.
_SEARCH: Final = (
    _rule("others may have sent it", Action.SEARCH, question=True, search=Search.NOT_SEARCHED),
    _rule("its like was sent", Reason.MAY_BE_SENT, question=True, search=Search.FOUND),
)

#: The first row that applies decides.
TABLE: Final = {
    Step.PREPARE: (
        *_BY_ID,
        _rule("nobody can be asked", Reason.CANNOT_SEARCH, question=True, search=Search.IMPOSSIBLE),
        *_SEARCH,
        _rule("nobody has sent it, and nobody can", Action.CREATE),
    ),
    Step.SEND: (
        *_SEARCH,
        _rule("what it was made from may have changed", Action.CHECK, is_outdated=Check.OPEN),
        _rule("it is not to be sent to these people any more", Action.DISCARD, is_outdated=Check.YES),
        _rule("a process can outlive its try", Action.CONFIRM, is_wanted=Check.OPEN),
        _rule("another try decides now", Action.STOP, is_wanted=Check.NO),
        _rule("nothing speaks against it", Action.SEND),
    ),
}


def decide(step: Step, evidence: Evidence) -> Decision:
    """Return what to do next: the first row of :data:`TABLE` that applies."""
    return next(row.then for row in TABLE[step] if row.applies(evidence))
