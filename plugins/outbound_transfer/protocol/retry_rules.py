"""Whether to repeat a failed call: the only place for retry decisions (docs/guarantees.md#sent-at-most-once)."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from outbound_transfer.protocol.errors import CallError, RateLimited, TransferLimitReached
from outbound_transfer.protocol.messages import Call, Operation


class RepeatEffect(Enum):
    """The effect of repeating a call that was already applied (service-api.md, R51)."""

    SAME = "the same response"
    DUPLICATE_DRAFT = "a second draft: invisible, unbilled, removed after 30 days"
    EXISTING_FILE = "200 with the existing file"
    INVALID_STATE = "409 invalid_state; reading the transfer shows whether the first was applied"
    NOT_FOUND = "404, because the first was applied"


REPEAT_EFFECTS: Final = {
    Operation.CREATE: RepeatEffect.DUPLICATE_DRAFT,
    Operation.LIST: RepeatEffect.SAME,
    Operation.GET: RepeatEffect.SAME,
    Operation.ATTACH: RepeatEffect.EXISTING_FILE,
    Operation.LIST_FILES: RepeatEffect.SAME,
    Operation.GET_FILE: RepeatEffect.SAME,
    Operation.REMOVE: RepeatEffect.NOT_FOUND,
    Operation.DISCARD: RepeatEffect.NOT_FOUND,
    Operation.SEND: RepeatEffect.INVALID_STATE,
    Operation.EVENTS: RepeatEffect.SAME,
}


#: Operations that change nothing.
READS: Final = tuple(operation for operation, effect in REPEAT_EFFECTS.items() if effect is RepeatEffect.SAME)


class RetryDecision(Enum):
    """What to do after an error."""

    FAIL = "do not repeat: it would fail again"
    BACK_OFF = "repeat after a backoff, up to max_attempts"
    WAIT_RETRY_AFTER = "repeat after the Retry-After of the service, until timeout"
    WAIT_FOR_SLOT = "repeat until another transfer has finished, until slot_timeout"


def decide_retry(call: Call[Any], error: BaseException) -> RetryDecision:
    """Decide whether to repeat a call after an error (service-api.md, R50).

    Every call may be repeated, even in doubt: :class:`.flows.SafeCall` first reconciles those whose repetition is not
    harmless according to :data:`REPEAT_EFFECTS`.
    """
    if isinstance(error, RateLimited):
        return RetryDecision.WAIT_RETRY_AFTER
    if isinstance(error, TransferLimitReached) and call.operation is Operation.SEND:
        return RetryDecision.WAIT_FOR_SLOT
    if isinstance(error, CallError) and error.is_transient and not error.is_last:
        return RetryDecision.BACK_OFF
    return RetryDecision.FAIL
