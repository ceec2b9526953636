"""All errors of this package, as classes; no code needs to match the text of a message.

Callers ask a :class:`CallError` whether it is ``in_doubt`` and whether it ``is_transient``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final


class OutboundTransferError(Exception):
    """Base class of the errors of this package."""

    def __init__(self, *texts: object) -> None:
        # A path may contain bytes that are not UTF-8, and Airflow cannot log such a string.
        super().__init__(*(str(text).encode(errors="backslashreplace").decode() for text in texts))


class InvalidSettings(ValueError):
    """The connection is unusable. What to do: correct the field or variable that the message names. Not retried."""


class InvalidDelivery(OutboundTransferError, ValueError):
    """The arguments break a rule; nothing was created. What to do: correct each line of the message. Not retried."""


class NothingMatches(InvalidDelivery):
    """No file matches a pattern. What to do: check the pattern, and the task that writes the files. Not retried."""


class SourceUnreadable(OutboundTransferError):
    """The file cannot be read here. What to do: let Airflow's user on this worker read it and its folder. Retried."""


class SourceMissing(SourceUnreadable):
    """The file does not exist. What to do: check its path, and the task that writes it. Retried."""


class SourceChanged(OutboundTransferError):
    """The file changed during delivery; nothing was sent. What to do: deliver a finished file, or a copy. Retried."""


class FileConflict(OutboundTransferError):
    """Another task attached a file with this name to the draft. What to do: use separate drafts. Not retried."""


class DraftChanged(OutboundTransferError):
    """The draft's files were changed; nothing was sent. What to do: clear the tasks that attach files. Retried."""


class WrongTransfer(OutboundTransferError):
    """The transfer with this id belongs to another account or to another delivery. Not retried.

    What to do: correct the connection or the id. Clear the task that creates the draft and all tasks after it. If
    something was sent, cancel it in the web application.
    """


class AlreadyDelivered(OutboundTransferError):
    """This run or delivery key has already sent a transfer, or its send is in doubt. Nothing else is sent. Not retried.

    What to do: check the web application. To deliver changed input, trigger a new run (with another ``delivery_key``).
    """


class TaskNotRunning(OutboundTransferError):
    """Airflow failed or cleared the task while its process was still running. What to do: nothing; it sent nothing."""


class Rehearsed(OutboundTransferError):
    """The connection rehearses: everything is done except the send. What to do: to send, remove its ``rehearse``."""


class CallsStopped(Exception):
    """Control flow, not an error: another thread has stopped the client's calls."""


class CallError(OutboundTransferError):
    """A call failed. ``in_doubt``: the service may have applied it. ``is_transient``: the call may succeed later."""

    in_doubt: bool = False
    is_exhausted: bool = False  # whether its retry loop has ended, so that a loop around it does not repeat it
    retry_after: float | None = None  # seconds that the service asks to wait
    is_transient: ClassVar[bool] = False
    waits_for_slot: ClassVar[bool] = False  # whether the client waits for it, up to slot_timeout


class DraftInUse(CallError):
    """Another task is changing the draft, or its send is in doubt; nothing was sent. Retried.

    What to do: if the attaching task failed, clear it; after a send in doubt, clear the creating task and all after it.
    """

    is_transient = waits_for_slot = True


class NotConnected(CallError):
    """No connection was established, so no request was sent. Repeated; only twice if the service was never reached.

    What to do: check the address, its scheme, the name server, proxies and firewalls on the way to the service.
    """

    is_transient = True


class NoResponse(CallError):
    """The connection broke before the response was complete, or it took longer than ``timeout``. Repeated.

    What to do: raise the connection's ``timeout`` if the service is slow; otherwise nothing, unless it happens often.
    """

    in_doubt = is_transient = True


class MalformedResponse(CallError):
    """The response does not match the service's API. Repeated; a page of the feed is left to the task's retries.

    What to do: look for a proxy or a sign-in page that responds in place of the service. If a redelivery says that the
    response contradicts itself, nothing was sent: look in the web application, and contact the service.
    """

    in_doubt = is_transient = True


#: The documented errors (service-api.md, R48). A known code with another status is not trusted.
BY_CODE: Final[dict[tuple[int, str], type[ServiceError]]] = {}


class ServiceError(CallError):
    """An error response of the service (service-api.md, R15).

    :ivar status: HTTP status.
    :ivar code: the stable code (``error`` in the response); "" if there was none.
    :ivar message: the service's explanation, redacted.
    :cvar advice: what the user can do: the docstring of the subclass.
    """

    advice: ClassVar[str] = "See the service's documentation for this status."

    def __init_subclass__(cls, documented: Mapping[int, str] | None = None) -> None:
        cls.advice = cls.__doc__ or cls.advice
        BY_CODE.update(dict.fromkeys((documented or {}).items(), cls))

    def __init__(self, status: int, code: str = "", message: str = "", retry_after: float | None = None) -> None:
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after
        name = f"{status} {code}".strip()
        super().__init__(f"{name}: {message.rstrip('.') or 'the service gave no message'}. {self.advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.code, self.message, self.retry_after), dict(vars(self))


class InvalidRequest(ServiceError, documented={400: "invalid_request"}):
    """Correct the field that the message names."""


class InvalidApiKey(ServiceError, documented={401: "invalid_api_key"}):
    """Check the API key of the Airflow connection: it is missing, malformed, unknown or revoked."""


class Forbidden(ServiceError):
    """The account or its user may not do this; contact the account's administrator."""


class ApiNotEnabled(Forbidden, documented={403: "api_not_enabled"}):
    """An administrator must enable the API for the account, and its plan must include outgoing transfers."""


class ApiNotPermitted(Forbidden, documented={403: "api_not_permitted"}):
    """An administrator must allow the key's user to use the API."""


class SendingNotPermitted(Forbidden, documented={403: "sending_not_permitted"}):
    """The key's user may not send files; contact the account's administrator."""


class AuthOptionNotEnabled(Forbidden, documented={403: "auth_option_not_enabled"}):
    """Choose a security option that the account has enabled; the service never substitutes a weaker one."""


class NoCredit(Forbidden, documented={403: "no_credit"}):
    """Buy credit for the account, then clear the task; nothing was sent."""


class NotFound(ServiceError, documented={404: "not_found"}):
    """The id is unknown, its draft was discarded, or another user sent it; use the sending user's key."""


class Conflict(ServiceError):
    """The transfer or the account is not in a state that allows this."""


class InvalidState(Conflict, documented={409: "invalid_state"}):
    """The transfer is not in a state that allows this: it was sent already, or it has no files."""


class TransferLimitReached(Conflict, documented={409: "transfer_limit_reached"}):
    """The account has reached its limit of outstanding transfers; the draft can be sent when one has finished."""

    is_transient = waits_for_slot = True


class RecipientLimitExceeded(Conflict, documented={409: "recipient_limit_exceeded"}):
    """The subscription allows fewer recipients per transfer; split the delivery."""


class LengthRequired(ServiceError, documented={411: "length_required"}):
    """A proxy between this client and the service removed the Content-Length of the upload."""


class FileTooLarge(ServiceError, documented={413: "file_too_large"}):
    """The file is over the account's per-file limit; split it or have the limit raised."""


class RateLimited(ServiceError, documented={429: "rate_limited"}):
    """The key's rate limit is exhausted; the call is repeated after the delay that the service asks for."""

    is_transient = True


class ServerFault(
    ServiceError, documented={500: "internal_error", **dict.fromkeys((502, 503, 504), "service_unavailable")}
):
    """The service has a temporary problem; try again later."""

    in_doubt = is_transient = True


#: For responses without a documented code: by status, otherwise by its hundred.
_BY_STATUS: Final = {status: kind for (status, _), kind in BY_CODE.items()} | {403: Forbidden, 409: Conflict}


def error_of(status: int, code: str, message: str, retry_after: float | None = None) -> ServiceError:
    """Return the exception for an error response."""
    kind = BY_CODE.get((status, code)) or _BY_STATUS.get(status) or _BY_STATUS.get(status // 100 * 100, ServiceError)
    return kind(status, code, message, retry_after)
