"""Everything that can go wrong, as classes. Nobody matches a message's text.

OutboundTransferError
├── InvalidDelivery              refused here, before the service was asked anything
│   └── NothingMatches
├── SourceError                  a file to deliver cannot be read, or is not what it was
│   ├── SourceUnreadable
│   │   └── SourceMissing
│   ├── SourceChanged
│   └── NameRefused
├── FileConflict                 the draft holds another file of that name
├── WrongTransfer                what the service shows under an id is not what is meant
├── CallError                    a call failed
│   ├── NotConnected             nothing was asked of the service
│   ├── ConnectionLost           *unclear: the call may have taken effect*
│   ├── TimedOut                 *unclear*
│   ├── MalformedAnswer          *unclear*
│   └── ServiceError             the service answered with an error (service.md, Errors)
│       ├── InvalidRequest       400 invalid_request
│       ├── InvalidApiKey        401 invalid_api_key
│       ├── Forbidden            403
│       │   ├── ApiNotEnabled, ApiNotPermitted, SendingNotPermitted, AuthOptionNotEnabled, NoCredit
│       ├── NotFound             404 not_found
│       ├── Conflict             409
│       │   ├── InvalidState, TransferLimitReached, RecipientLimitExceeded
│       ├── LengthRequired       411 length_required
│       ├── FileTooLarge         413 file_too_large
│       ├── RateLimited          429 rate_limited
│       └── ServerFault          500 internal_error; 502, 503, 504 service_unavailable   *unclear*

An error code that this file does not know falls back to the class of its status, then of its status' hundred.
"""

from __future__ import annotations

from typing import Any, ClassVar


class OutboundTransferError(Exception):
    """Base class of everything raised on purpose by this package.

    :ivar doubt: what may have happened all the same, where it cannot be taken back; "" where nothing is in doubt.
    """

    doubt: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()} {self.doubt}".rstrip()


class InvalidDelivery(OutboundTransferError, ValueError):
    """What was asked for breaks a rule of the service; nothing was created."""


class NothingMatches(InvalidDelivery):
    """No file has a name like the pattern, wherever it was looked for."""


class SourceError(OutboundTransferError):
    """A file to deliver cannot be delivered as it is."""


class SourceUnreadable(SourceError):
    """The file is missing, not a file, or may not be read."""


class SourceMissing(SourceUnreadable):
    """The file is not there, which is known: its folder could be asked."""


class SourceChanged(SourceError):
    """The file is not the one that the delivery was made for: it grew, shrank or changed."""


class NameRefused(SourceError, ValueError):
    """The service could not store the file under this name unchanged."""


class FileConflict(OutboundTransferError):
    """The draft holds a file of this name that this delivery did not put there."""


class WrongTransfer(OutboundTransferError):
    """What the service shows under an id is not what is meant: another account's transfer, or another delivery's."""


class CallError(OutboundTransferError):
    """A call failed.

    :ivar unclear: it, or an earlier try of the same call, may have taken effect all the same.
    :ivar is_last: no other try is to be made now, as each may leave something behind.
    :cvar passes: the same call may well succeed later.
    """

    unclear: bool = False
    is_last: bool = False
    passes: ClassVar[bool] = False


class NotConnected(CallError):
    """No connection came about, so the service was asked nothing."""

    passes = True


class ConnectionLost(CallError):
    """The connection broke before the answer was complete."""

    unclear = passes = True


class TimedOut(CallError):
    """The service did not answer in time."""

    unclear = passes = True


class MalformedAnswer(CallError):
    """The answer is not what service.md describes."""

    unclear = passes = True


class ServiceError(CallError):
    """The service's own error answer (service.md, Resources / Error object).

    :ivar status: HTTP status, an integer.
    :ivar code: the stable code (``error`` of the answer), or "" where there was none.
    :ivar retry_after: seconds that the service asks to wait; None where it does not say.
    """

    codes: ClassVar[tuple[str, ...]] = ()
    statuses: ClassVar[tuple[int, ...]] = ()
    advice: ClassVar[str] = "See the service's documentation for this status."
    _by_code: ClassVar[dict[str, type[ServiceError]]] = {}
    _by_status: ClassVar[dict[int, type[ServiceError]]] = {}

    def __init__(self, status: int, code: str = "", message: str = "", retry_after: float | None = None) -> None:
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after
        said = f"{status} {code}".strip()
        super().__init__(f"{said}: {message.rstrip('.') or 'the service gave no message'}. {self.advice}")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for code in cls.__dict__.get("codes", ()):
            cls._by_code[code] = cls
        for status in cls.__dict__.get("statuses", ()):
            cls._by_status[status] = cls

    def __reduce__(self) -> tuple[type[ServiceError], tuple[int, str, str, float | None], dict[str, Any]]:
        return type(self), (self.status, self.code, self.message, self.retry_after), dict(vars(self))

    @classmethod
    def of(cls, status: int, code: str, message: str, retry_after: float | None = None) -> ServiceError:
        """The error of the right class for an answer: by code, else by status, else by the status' hundred."""
        by_code = cls._by_code.get(code)
        if by_code is None or not by_code.fits(status):
            by_code = cls._by_status.get(status) or cls._by_status.get(status // 100 * 100) or ServiceError
        return by_code(status, code, message, retry_after)

    @classmethod
    def knows(cls, code: str) -> bool:
        """Whether ``code`` is one of service.md's, and so holds nothing of the request."""
        return code in cls._by_code

    @classmethod
    def fits(cls, status: int) -> bool:
        """Whether this class may carry ``status``: a known code on a foreign status is not trusted."""
        own = next((c.statuses for c in cls.__mro__ if issubclass(c, ServiceError) and c.statuses), ())
        return status in own


class InvalidRequest(ServiceError):
    codes, statuses = ("invalid_request",), (400,)
    advice = "Correct the field that the message names."


class InvalidApiKey(ServiceError):
    codes, statuses = ("invalid_api_key",), (401,)
    advice = "Check the API key of the Airflow connection: it is missing, malformed, unknown or revoked."


class Forbidden(ServiceError):
    statuses = (403,)
    advice = "The account or its user may not do this; ask the account's administrator."


class ApiNotEnabled(Forbidden):
    codes = ("api_not_enabled",)
    advice = "An administrator must enable the API for the account, and its plan must include outgoing transfers."


class ApiNotPermitted(Forbidden):
    codes = ("api_not_permitted",)
    advice = "An administrator must grant the key's user the use of the API."


class SendingNotPermitted(Forbidden):
    codes = ("sending_not_permitted",)
    advice = "The key's user may not send files; ask the account's administrator."


class AuthOptionNotEnabled(Forbidden):
    codes = ("auth_option_not_enabled",)
    advice = "Choose a security option that the account has; the service never substitutes a weaker one."


class NoCredit(Forbidden):
    codes = ("no_credit",)
    advice = "Buy credit for the account, then clear the task: the draft is kept and sent."


class NotFound(ServiceError):
    codes, statuses = ("not_found",), (404,)
    advice = "The id is unknown, its draft was discarded, or another user sent it: use the key of the sending user."


class Conflict(ServiceError):
    statuses = (409,)


class InvalidState(Conflict):
    codes = ("invalid_state",)
    advice = "The transfer is not in a state that allows this: it was sent already, or it has no files."


class TransferLimitReached(Conflict):
    codes = ("transfer_limit_reached",)
    passes = True
    advice = "The account has as many outstanding transfers as it may; the draft can be sent when one has ended."


class RecipientLimitExceeded(Conflict):
    codes = ("recipient_limit_exceeded",)
    advice = "The subscription allows fewer recipients per transfer; split the delivery."


class LengthRequired(ServiceError):
    codes, statuses = ("length_required",), (411,)
    advice = "Something between here and the service removed the Content-Length of the upload."


class FileTooLarge(ServiceError):
    codes, statuses = ("file_too_large",), (413,)
    advice = "The file is over the account's per-file limit; split it or have the limit raised."


class RateLimited(ServiceError):
    codes, statuses = ("rate_limited",), (429,)
    passes = True
    advice = "The key's allowance is used up; the call is repeated after the wait that the service asks for."


class ServerFault(ServiceError):
    codes, statuses = ("internal_error", "service_unavailable"), (500, 502, 503, 504)
    advice = "The service is in trouble; try again later."
    unclear = passes = True
