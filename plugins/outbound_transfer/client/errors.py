"""All errors of this package, as classes; no code needs to match the text of a message.

Callers ask a :class:`CallError` whether it is ``in_doubt`` and whether it ``is_transient``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final


class OutboundTransferError(Exception):
    """Base class of the errors of this package."""

    def __init__(self, *texts: object) -> None:
        # A path may hold bytes that are no UTF-8, of which Airflow can log nothing.
        super().__init__(*(str(text).encode(errors="backslashreplace").decode() for text in texts))


class InvalidSettings(ValueError):
    """The connection is unusable. What to do: correct the field or variable that the message names. Not retried."""


class InvalidDelivery(OutboundTransferError, ValueError):
    """The arguments break a rule; nothing was created. What to do: correct each line of the message. Not retried."""


class NothingMatches(InvalidDelivery):
    """No file matches a pattern. What to do: check the pattern, and the task that writes the files. Not retried."""


class SourceUnreadable(OutboundTransferError):
    """The file is missing, not a regular file, or cannot be read.

    What to do: check that it exists on this worker, and that Airflow's user may read it and list its folder. Retried;
    nothing is sent without the file.
    """


class SourceMissing(SourceUnreadable):
    """The file does not exist. What to do: check its path, and the task that writes it. Retried."""


class SourceChanged(OutboundTransferError):
    """The file has changed since the delivery started; nothing was sent.

    What to do: deliver files that nothing writes to any longer, or a copy. Retried.
    """


class FileConflict(OutboundTransferError):
    """The draft has a file of this name that this delivery did not attach.

    What to do: use a draft for each delivery, as another task attaches to this one. Not retried.
    """


class DraftChanged(OutboundTransferError):
    """The draft does not hold the files that were attached to it; nothing was sent. Retried.

    What to do: if a retry does not help, clear the tasks that attach the files, and the one that sends.
    """


class WrongTransfer(OutboundTransferError):
    """The transfer with this id belongs to another account or to another delivery.

    What to do: correct the connection, or the id. If nothing was sent, clear the run from the task that creates the
    draft on; if something was, look in the web application, where it can be canceled. Not retried.
    """


class AlreadyDelivered(OutboundTransferError):
    """This run, or this delivery key, has sent a transfer, or may have, and must not send another one.

    What to do: to deliver other input, trigger a new DAG run (with another ``delivery_key``). If something may have
    been sent, look in the web application first. Not retried.
    """


class TaskNotRunning(OutboundTransferError):
    """Airflow failed or cleared the task while its process was still running. What to do: nothing; it sent nothing."""


class Rehearsed(OutboundTransferError):
    """The connection rehearses, so all is done but the send. What to do: take ``rehearse`` out of it to send."""


class CallsStopped(Exception):
    """Control flow, not an error: another thread has stopped the calls of the client."""


class CallError(OutboundTransferError):
    """A call failed.

    :ivar in_doubt: whether the service may have applied it nevertheless.
    :ivar is_exhausted: whether its retry loop has ended, so that a loop around it does not repeat it.
    :ivar retry_after: seconds that the service asks to wait; None if it does not say.
    :cvar is_transient: whether the same call may succeed later.
    :cvar waits_for_slot: whether it is waited for as long as ``slot_timeout`` says.
    """

    in_doubt: bool = False
    is_exhausted: bool = False
    retry_after: float | None = None
    is_transient: ClassVar[bool] = False
    waits_for_slot: ClassVar[bool] = False


class DraftInUse(CallError):
    """Another task is at work on the draft, or a send of it is in doubt; nothing was sent.

    What to do: clear the task that attaches files, if it has failed. After a send in doubt, clear the task that creates
    the draft, and all after it. Retried.
    """

    is_transient = waits_for_slot = True


class NotConnected(CallError):
    """No connection was established, so no request was sent.

    What to do: check the address, its scheme, the name server, proxies and firewalls between the worker and the
    service. Repeated; the first connection of a task only twice, then the task is retried.
    """

    is_transient = True


class NoResponse(CallError):
    """The connection broke before the response was complete, or it took longer than the connection's ``timeout``.

    What to do: raise ``timeout`` if the service is slow; otherwise nothing, unless it is frequent. Repeated.
    """

    in_doubt = is_transient = True


class MalformedResponse(CallError):
    """The response does not match the service's API. Repeated; a page of the feed is left to the task's retries.

    What to do: look for a proxy or a sign-in page that responds in place of the service. If the response contradicts
    itself about who has picked up, a redelivery sends nothing: look in the web application, and ask the service.
    """

    in_doubt = is_transient = True


class ServiceError(CallError):
    """An error response of the service (service-api.md, R15).

    :ivar status: HTTP status.
    :ivar code: the stable code (``error`` in the response); "" if there was none.
    :ivar message: the service's explanation, redacted.
    :ivar retry_after: seconds that the service asks to wait; None if it does not say.
    :cvar advice: what the user can do.
    """

    advice: ClassVar[str] = "See the service's documentation for this status."

    def __init__(self, status: int, code: str = "", message: str = "", retry_after: float | None = None) -> None:
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after
        name = f"{status} {code}".strip()
        super().__init__(f"{name}: {message.rstrip('.') or 'the service gave no message'}. {self.advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.code, self.message, self.retry_after), dict(vars(self))


class InvalidRequest(ServiceError):
    advice = "Correct the field that the message names."


class InvalidApiKey(ServiceError):
    advice = "Check the API key of the Airflow connection: it is missing, malformed, unknown or revoked."


class Forbidden(ServiceError):
    advice = "The account or its user may not do this; contact the account's administrator."


class ApiNotEnabled(Forbidden):
    advice = "An administrator must enable the API for the account, and its plan must include outgoing transfers."


class ApiNotPermitted(Forbidden):
    advice = "An administrator must grant the key's user the use of the API."


class SendingNotPermitted(Forbidden):
    advice = "The key's user may not send files; contact the account's administrator."


class AuthOptionNotEnabled(Forbidden):
    advice = "Choose a security option that the account has enabled; the service never substitutes a weaker one."


class NoCredit(Forbidden):
    advice = "Buy credit for the account, then clear the task: nothing was sent."


class NotFound(ServiceError):
    advice = "The id is unknown, its draft was discarded, or another user sent it: use the key of the sending user."


class Conflict(ServiceError):
    pass


class InvalidState(Conflict):
    advice = "The transfer is not in a state that allows this: it was sent already, or it has no files."


class TransferLimitReached(Conflict):
    is_transient = waits_for_slot = True
    advice = "The account has reached its limit of outstanding transfers; the draft can be sent when one has finished."


class RecipientLimitExceeded(Conflict):
    advice = "The subscription allows fewer recipients per transfer; split the delivery."


class LengthRequired(ServiceError):
    advice = "A proxy between this client and the service removed the Content-Length of the upload."


class FileTooLarge(ServiceError):
    advice = "The file is over the account's per-file limit; split it or have the limit raised."


class RateLimited(ServiceError):
    is_transient = True
    advice = "The key's rate limit is exhausted; the call is repeated after the delay that the service asks for."


class ServerFault(ServiceError):
    in_doubt = is_transient = True
    advice = "The service has a temporary problem; try again later."


#: The documented errors (service-api.md, R48). A known code with another status is not trusted.
BY_CODE: Final[dict[tuple[int, str], type[ServiceError]]] = {
    (400, "invalid_request"): InvalidRequest,
    (401, "invalid_api_key"): InvalidApiKey,
    (403, "api_not_enabled"): ApiNotEnabled,
    (403, "api_not_permitted"): ApiNotPermitted,
    (403, "sending_not_permitted"): SendingNotPermitted,
    (403, "auth_option_not_enabled"): AuthOptionNotEnabled,
    (403, "no_credit"): NoCredit,
    (404, "not_found"): NotFound,
    (409, "invalid_state"): InvalidState,
    (409, "transfer_limit_reached"): TransferLimitReached,
    (409, "recipient_limit_exceeded"): RecipientLimitExceeded,
    (411, "length_required"): LengthRequired,
    (413, "file_too_large"): FileTooLarge,
    (429, "rate_limited"): RateLimited,
    (500, "internal_error"): ServerFault,
    **{(status, "service_unavailable"): ServerFault for status in (502, 503, 504)},
}

#: Their codes, which quote nothing of a request.
CODES: Final = frozenset(code for _, code in BY_CODE)

#: Of responses with an undocumented code or none: by status, otherwise by its hundred.
_BY_STATUS: Final = {status: kind for (status, _), kind in BY_CODE.items()} | {403: Forbidden, 409: Conflict}


def error_of(status: int, code: str, message: str, retry_after: float | None = None) -> ServiceError:
    """Return an error response as an error of its class."""
    kind = BY_CODE.get((status, code)) or _BY_STATUS.get(status) or _BY_STATUS.get(status // 100 * 100, ServiceError)
    return kind(status, code, message, retry_after)
