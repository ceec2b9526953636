"""What the service keeps, as values. Instants are microseconds since 1970 (see `clock`)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from . import unspecified

Security = Literal["none", "email", "email_code", "question", "sms", "login"]
SECURITY_OPTIONS: tuple[Security, ...] = ("none", "email", "email_code", "question", "sms", "login")

Count = Annotated[int, Meta(ge=0, le=10**12)]


class Account(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The account's settings, all of which `PATCH /_sandbox/account` can change. 0 feed seconds: no feed limit."""

    api_enabled: bool = True
    outgoing_enabled: bool = True
    plan: Literal["trial", "free", "business"] = "business"
    recipients_per_transfer: Annotated[int, Meta(ge=1, le=250)] = 250
    per_file_limit_mb: Annotated[int, Meta(ge=1, le=10**9)] = unspecified.PER_FILE_LIMIT_MB
    delivery_window_days: Annotated[int, Meta(ge=1, le=36_500)] = unspecified.DELIVERY_WINDOW_DAYS
    outstanding_transfer_limit: Count = unspecified.OUTSTANDING_TRANSFER_LIMIT
    scheduled_sends: Count = 0
    billing: Literal["included", "per_transfer"] = "included"
    credits: Count = unspecified.CREDITS
    default_security: Security = "none"
    security_options: tuple[Security, ...] = SECURITY_OPTIONS
    requests_per_window: Annotated[int, Meta(ge=1, le=10**9)] = 60
    window_seconds: Annotated[float, Meta(gt=0, le=10**9)] = 60
    feed_interval_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 60

    def __post_init__(self) -> None:
        if self.default_security not in self.security_options:
            raise ValueError("default_security must be one of security_options")

    @property
    def recipient_limit(self) -> int:
        """Recipients per transfer; trial and free subscriptions: 1 (service.md, Limits)."""
        return self.recipients_per_transfer if self.plan == "business" else 1


class User(Struct, frozen=True):
    name: str
    active: bool
    api_permitted: bool
    sending_permitted: bool


class Person(Struct, frozen=True):
    """A user who signs in to the web application."""

    name: str
    administrator: bool


class TransferKey(Struct, frozen=True):
    """What is kept of a key besides its hash, for the user who made it."""

    pk: int
    label: str
    created_at: int
    last_used_at: int | None
    revoked_at: int | None


class Caller(Struct, frozen=True):
    """Who a transfer key acts as."""

    key: int
    user: str


class Recipient(Struct, frozen=True):
    """`pk` is 0 until it is stored. `phone` is never shown by the service."""

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
    """`status` is what a reader sees now (service.md, States)."""

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
    """A transfer that is about to be created. `security_answer` is a hash."""

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
    at: int
    data: str


class FeedCall(Struct, frozen=True):
    """A row of the feed usage log (service.md, Feed usage log)."""

    pk: int
    at: int
    status: int
    events: int


class Mail(Struct, frozen=True, kw_only=True):
    """An email or text that went out. `secret` is the link's token, or the code."""

    pk: int
    kind: Literal["pickup", "code"]
    channel: Literal["email", "text"]
    address: str
    secret: str
    at: int
    recipient_name: str
    transfer_id: str
    sender: str
    subject: str
    message: str | None
    security: Security
    expires_at: int
    files: int
