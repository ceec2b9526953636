"""All errors of this package, as classes; no code needs to match the text of a message.

OutboundTransferError
├── InvalidDelivery              rejected here, before any call to the service
│   └── NothingMatches
├── SourceError                  a file to deliver cannot be read, or has changed
│   ├── SourceUnreadable
│   │   └── SourceMissing
│   ├── SourceChanged
│   └── NameRefused
├── FileConflict                 the draft already has another file of that name
├── DraftChanged                 another try has changed the draft's files; nothing was sent
├── WrongTransfer                the id belongs to another transfer than expected
├── AlreadyDelivered             it was sent, or may have been, and must not be sent again
├── TaskNotRunning               Airflow has given the task's try up
├── Rehearsed                    all is done but the send, which a rehearsal leaves out
├── CallError                    a call failed
│   ├── DraftInUse               another task is at work on the draft
│   ├── NotConnected             no request reached the service
│   ├── ConnectionLost           *in doubt: the call may have been applied*
│   ├── TimedOut                 *in doubt*
│   ├── MalformedResponse        *in doubt*
│   └── ServiceError             the service returned an error (service-api.md, R48)
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
│       └── ServerFault          500 internal_error; 502, 503, 504 service_unavailable   *in doubt*

An unknown error code maps to the class of its status, an unknown status to that of its hundred (4xx: 400, 5xx: 500).
"""

from __future__ import annotations

from typing import Any, ClassVar


class OutboundTransferError(Exception):
    """Base class of the errors of this package.

    :ivar in_doubt_warning: an effect that may have happened despite the error; "" if nothing is in doubt.
    """

    in_doubt_warning: str = ""

    def __init__(self, *texts: object) -> None:
        # A path may hold bytes that are no UTF-8, of which Airflow can log nothing.
        super().__init__(*(str(text).encode(errors="backslashreplace").decode() for text in texts))

    def __str__(self) -> str:
        return f"{super().__str__()} {self.in_doubt_warning}".rstrip()


class InvalidSettings(ValueError):
    """The connection is unusable. The text names the field to correct and quotes no key.

    What to do: fill in or correct the field of the connection that the message names. Not retried.
    """


class InvalidDelivery(OutboundTransferError, ValueError):
    """The arguments break a rule of the service; nothing was created.

    What to do: correct each line that the message lists. The task is not retried, as a retry would fail in the same
    way.
    """


class NothingMatches(InvalidDelivery):
    """No file matches a pattern.

    What to do: check the folder on the worker, the pattern, and the task that should have written the files. Give two
    files of one name different ones: ``{"path": …, "name": …}``. Not retried.
    """


class SourceError(OutboundTransferError):
    """A file cannot be delivered."""


class SourceUnreadable(SourceError):
    """The file is missing, is not a regular file, or cannot be read.

    What to do: check that the file exists on this worker, and that Airflow's user may read it and list its folder.
    Retried; nothing is sent without the file.
    """


class SourceMissing(SourceUnreadable):
    """The file does not exist; its folder could be listed.

    What to do: check the path on this worker, and the task that should have written the file. Retried.
    """


class SourceChanged(SourceError):
    """The file has changed since the delivery started.

    What to do: deliver files that nothing writes to any longer; of a file whose size the file system does not report, a
    copy. Retried; nothing was sent.
    """


class NameRefused(SourceError, ValueError):
    """The service could not store this file name unchanged, or the name looks like another.

    What to do: choose another name: ``{"path": …, "name": …}``. Not retried.
    """


class FileConflict(OutboundTransferError):
    """The draft has a file of this name that this delivery did not attach.

    What to do: use a draft for each delivery: another task attaches to this one. Not retried.
    """


class DraftChanged(OutboundTransferError):
    """The draft does not hold the files that were attached to it: another try has changed it. A retry mends it.

    What to do: clear the tasks that attach the files, and the one that sends. If it comes again, another task attaches
    to this draft. Retried; nothing was sent.
    """


class WrongTransfer(OutboundTransferError):
    """The transfer with this id belongs to another account or to another delivery.

    What to do: correct the connection, which leads to another account than before, or the id. If nothing was sent,
    clear the run from the task that creates the draft on. If the message says that the transfer was sent, look in the
    web application, where it can be canceled. Not retried.
    """


class AlreadyDelivered(OutboundTransferError):
    """This run, or this delivery key, has sent a transfer, or may have, and must not send another one.

    What to do: to deliver other input, trigger a new DAG run (with another ``delivery_key``). If the message says that
    something may have been sent, look in the web application first. Not retried.
    """


class TaskNotRunning(OutboundTransferError):
    """Airflow has given this try up: it must do nothing that cannot be undone.

    What to do: nothing: Airflow failed or cleared the task while its process was still running. Nothing was sent by it.
    """


class Rehearsed(OutboundTransferError):
    """The connection rehearses: everything before the send is done, and the send is not made.

    What to do: take ``rehearse`` out of the connection or the configuration to send.
    """


class CallsStopped(Exception):
    """Control flow, not an error: another thread has stopped the calls of the client."""


class DeferRequested(Exception):
    """Control flow, not an error: asks the task to wait in deferred mode instead of holding its worker slot."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"waiting {seconds:.0f} s")
        self.seconds = seconds


class CallError(OutboundTransferError):
    """A call failed.

    :ivar in_doubt: whether the call, in this attempt or an earlier one, may have been applied.
    :ivar was_in_doubt: whether any attempt was in doubt, if a read has shown no effect since: its request may still be
        under way.
    :ivar is_exhausted: whether its retry loop has ended, so that a loop around it does not repeat it.
    :cvar is_transient: whether the same call may succeed later.
    :cvar waits_for_slot: whether it is waited for as long as ``slot_timeout`` says.
    """

    in_doubt: bool = False
    was_in_doubt: bool = False
    is_exhausted: bool = False
    is_transient: ClassVar[bool] = False
    waits_for_slot: ClassVar[bool] = False


class DraftInUse(CallError):
    """Another task is at work on the draft, or a send of it is under way or in doubt.

    What to do: nothing, if a task that attaches files runs. If it has failed, clear it. After a send in doubt, nobody
    changes the draft's files: clear the task that creates the draft, and all after it. Retried; nothing was sent.
    """

    is_transient = waits_for_slot = True


class NotConnected(CallError):
    """No connection was established, so no request was sent.

    What to do: check the address that the message names, with its scheme, the name server, proxies and firewalls
    between the worker and the service. Repeated; the first connection of a task only twice, then the task is retried.
    """

    is_transient = True


class ConnectionLost(CallError):
    """The connection broke before the response was complete.

    What to do: nothing, unless it is frequent. Repeated; a call in doubt is reconciled first.
    """

    in_doubt = is_transient = True


class TimedOut(CallError):
    """The service did not respond in time.

    What to do: raise ``timeout`` of the connection where the service is slow. Repeated; a call in doubt is reconciled
    first.
    """

    in_doubt = is_transient = True


class MalformedResponse(CallError):
    """The response does not match the service's API.

    What to do: look for a proxy or a sign-in page that responds in place of the service. Repeated; a call in doubt is
    reconciled first. A page of the feed is left to the task's retries. If the response contradicts itself about who has
    picked up, a redelivery sends nothing: look in the web application, and ask the service.
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

    codes: ClassVar[tuple[str, ...]] = ()
    statuses: ClassVar[tuple[int, ...]] = ()
    advice: ClassVar[str] = "See the service's documentation for this status."
    _by_code: ClassVar[dict[str, type[ServiceError]]] = {}
    _by_status: ClassVar[dict[int, type[ServiceError]]] = {}

    def __init__(self, status: int, code: str = "", message: str = "", retry_after: float | None = None) -> None:
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after
        name = f"{status} {code}".strip()
        super().__init__(f"{name}: {message.rstrip('.') or 'the service gave no message'}. {self.advice}")

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
        """Return an error of the class for its code, otherwise for its status, otherwise for the status' hundred."""
        by_code = cls._by_code.get(code)
        if by_code is None or not by_code.fits(status):
            by_code = cls._by_status.get(status) or cls._by_status.get(status // 100 * 100) or ServiceError
        return by_code(status, code, message, retry_after)

    @classmethod
    def knows(cls, code: str) -> bool:
        """Return whether ``code`` is documented (service-api.md, R48), and therefore quotes nothing of the request."""
        return code in cls._by_code

    @classmethod
    def fits(cls, status: int) -> bool:
        """Return whether this class may have ``status``; a known code with an unexpected status is not trusted."""
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
    advice = "The account or its user may not do this; contact the account's administrator."


class ApiNotEnabled(Forbidden):
    codes = ("api_not_enabled",)
    advice = "An administrator must enable the API for the account, and its plan must include outgoing transfers."


class ApiNotPermitted(Forbidden):
    codes = ("api_not_permitted",)
    advice = "An administrator must grant the key's user the use of the API."


class SendingNotPermitted(Forbidden):
    codes = ("sending_not_permitted",)
    advice = "The key's user may not send files; contact the account's administrator."


class AuthOptionNotEnabled(Forbidden):
    codes = ("auth_option_not_enabled",)
    advice = "Choose a security option that the account has enabled; the service never substitutes a weaker one."


class NoCredit(Forbidden):
    codes = ("no_credit",)
    advice = "Buy credit for the account, then clear the task: nothing was sent."


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
    is_transient = waits_for_slot = True
    advice = "The account has reached its limit of outstanding transfers; the draft can be sent when one has finished."


class RecipientLimitExceeded(Conflict):
    codes = ("recipient_limit_exceeded",)
    advice = "The subscription allows fewer recipients per transfer; split the delivery."


class LengthRequired(ServiceError):
    codes, statuses = ("length_required",), (411,)
    advice = "A proxy between this client and the service removed the Content-Length of the upload."


class FileTooLarge(ServiceError):
    codes, statuses = ("file_too_large",), (413,)
    advice = "The file is over the account's per-file limit; split it or have the limit raised."


class RateLimited(ServiceError):
    codes, statuses = ("rate_limited",), (429,)
    is_transient = True
    advice = "The key's rate limit is exhausted; the call is repeated after the delay that the service asks for."


class ServerFault(ServiceError):
    codes, statuses = ("internal_error", "service_unavailable"), (500, 502, 503, 504)
    advice = "The service has a temporary problem; try again later."
    in_doubt = is_transient = True
