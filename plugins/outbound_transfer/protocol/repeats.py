"""Whether a failed call is repeated: the one table of retry decisions (design: promise 5.1)."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from outbound_transfer.protocol.errors import CallError, RateLimited, TransferLimitReached
from outbound_transfer.protocol.exchange import Call, Operation


class Effect(Enum):
    """What repeating a call that already took effect would do."""

    SAME = "the same answer"
    SECOND_DRAFT = "a second draft: invisible, unbilled, gone in 30 days"
    EXISTING_FILE = "the file that is there, with status 200"
    REFUSED = "409 invalid_state: a read tells whether the first landed"
    GONE = "404: the first did it"


EFFECTS: Final = {
    Operation.CREATE: Effect.SECOND_DRAFT,
    Operation.LIST: Effect.SAME,
    Operation.GET: Effect.SAME,
    Operation.ATTACH: Effect.EXISTING_FILE,
    Operation.LIST_FILES: Effect.SAME,
    Operation.GET_FILE: Effect.SAME,
    Operation.REMOVE: Effect.GONE,
    Operation.DISCARD: Effect.GONE,
    Operation.SEND: Effect.REFUSED,
    Operation.EVENTS: Effect.SAME,
}


class Decision(Enum):
    """What to do about an error."""

    FAIL = "a repeat would fail alike"
    BACK_OFF = "repeat after a backoff, a bounded number of times"
    WAIT_AS_TOLD = "repeat when the service says, as long as there is time"
    WAIT_FOR_SLOT = "repeat when another transfer may have ended, as long as there is time"


def decide(call: Call[Any], error: BaseException) -> Decision:
    """What to do about ``error`` of ``call`` (service.md, Endpoints / Client retry guidance).

    Every call may be repeated after an unclear failure: the flow of one try (:mod:`.flows`) asks first whether
    the earlier one landed where :data:`EFFECTS` says that a repeat is not harmless by itself.
    """
    if isinstance(error, RateLimited):
        return Decision.WAIT_AS_TOLD
    if isinstance(error, TransferLimitReached) and call.operation is Operation.SEND:
        return Decision.WAIT_FOR_SLOT
    if isinstance(error, CallError) and error.passes and not error.is_last:
        return Decision.BACK_OFF
    return Decision.FAIL
