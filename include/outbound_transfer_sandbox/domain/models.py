"""The service's resources as values. Timestamps are microseconds since 1970 (see `clock`)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from . import defaults

Security = Literal["none", "email", "email_code", "question", "sms", "login"]
SECURITY_OPTIONS: tuple[Security, ...] = ("none", "email", "email_code", "question", "sms", "login")

Count = Annotated[int, Meta(ge=0, le=10**12)]


class Account(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The account's settings, for `PATCH /_sandbox/account`. `feed_interval_seconds` = 0 removes the feed's limit.

    `auto_pickup_seconds` lets every recipient pick up so long after the send; None leaves it to the recipients.
    """

    api_enabled: bool = True
    outgoing_enabled: bool = True
    plan: Literal["trial", "free", "business"] = "business"
    recipients_per_transfer: Annotated[int, Meta(ge=1, le=250)] = 250
    per_file_limit_mb: Annotated[int, Meta(ge=1, le=10**9)] = defaults.PER_FILE_LIMIT_MB
    delivery_window_days: Annotated[int, Meta(ge=1, le=36_500)] = defaults.DELIVERY_WINDOW_DAYS
    outstanding_transfer_limit: Count = defaults.OUTSTANDING_TRANSFER_LIMIT
    scheduled_sends: Count = 0
    billing: Literal["included", "per_transfer"] = "included"
    credits: Count = defaults.CREDITS
    default_security: Security = "none"
    security_options: tuple[Security, ...] = SECURITY_OPTIONS
    requests_per_window: Annotated[int, Meta(ge=1, le=10**9)] = 60
    window_seconds: Annotated[float, Meta(gt=0, le=10**9)] = 60
    feed_interval_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 60
    auto_pickup_seconds: Annotated[float, Meta(ge=0, le=10**9)] | None = None

    def __post_init__(self) -> None:
        if self.default_security not in self.security_options:
            raise ValueError("default_security must be one of security_options")

    @property
    def recipient_limit(self) -> int:
        """Return how many recipients a transfer may have (service-api.md, R54)."""
        return self.recipients_per_transfer if self.plan == "business" else 1


class User(Struct, frozen=True):
    name: str
    active: bool
    api_permitted: bool
    sending_permitted: bool


class WebUser(Struct, frozen=True):
    """A user who signs in to the web application."""

    name: str
    administrator: bool


class TransferKey(Struct, frozen=True):
    """A transfer key as its user sees it. The key itself is not stored."""

    pk: int
    label: str
    created_at: int
    last_used_at: int | None
    revoked_at: int | None


class Caller(Struct, frozen=True):
    """The user that a transfer key acts as."""

    key: int
    user: str


class Recipient(Struct, frozen=True):
    """`pk` is 0 until the recipient is stored. The service never returns `phone`."""

    email: str
    name: str
    phone: str | None = None
    picked_up_at: int | None = None
    pk: int = 0


class File(Struct, frozen=True):
    id: str
    name: str
    size: int
    content_type: str


class Transfer(Struct, frozen=True, kw_only=True):
    """`status` is the one that a reader sees now (service-api.md, R17)."""

    pk: int
    id: str
    user: str
    status: str
    subject: str
    message: str | None
    security: str
    created_at: int
    expires_at: int
    sent_at: int | None
    recipients: list[Recipient] = field(default_factory=list)
    files: list[File] = field(default_factory=list)


class Draft(Struct, frozen=True, kw_only=True):
    """A valid draft that is not stored yet. `security_answer` is a hash."""

    subject: str
    message: str | None
    security: str
    security_question: str | None
    security_answer: str | None
    recipients: list[Recipient]


class Event(Struct, frozen=True):
    """`data` is JSON text."""

    event_id: int
    type: str
    timestamp: int
    data: str


class FeedCall(Struct, frozen=True):
    """A row of the feed usage log (service-api.md, R16)."""

    pk: int
    timestamp: int
    status: int
    events: int


class Mail(Struct, frozen=True, kw_only=True):
    """An email or text message that was sent. `secret` is the token of its link, or its code."""

    pk: int
    kind: Literal["pickup", "code"]
    channel: Literal["email", "text"]
    address: str
    secret: str
    timestamp: int
    recipient_name: str
    transfer_id: str
    sender: str
    subject: str
    message: str | None
    security: Security
    expires_at: int
    files: int
