"""Request bodies of the control API."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from outbound_transfer_sandbox.domain import defaults
from outbound_transfer_sandbox.domain.models import User
from outbound_transfer_sandbox.service.validation import Text

Name = Annotated[Text, Meta(min_length=1, max_length=defaults.MAX_ADDRESS_LENGTH)]


class ClockAdvance(Struct, forbid_unknown_fields=True):
    advance_seconds: Annotated[float, Meta(ge=0)]


class UserChange(Struct, forbid_unknown_fields=True):
    """Changes to a user's grants. A missing field leaves its grant unchanged."""

    active: bool | None = None
    api_permitted: bool | None = None
    sending_permitted: bool | None = None

    def apply_to(self, user: User) -> User:
        grants = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(user, **grants)


class NewKey(Struct, forbid_unknown_fields=True):
    user: Name = defaults.FIRST_USER
    api_permitted: bool | None = None
    sending_permitted: bool | None = None


class KeyReference(Struct, forbid_unknown_fields=True):
    key: str


class NewCredentials(Struct, forbid_unknown_fields=True):
    user: Name
    password: Annotated[str, Meta(min_length=1, max_length=1000)]
    administrator: bool = False


class PickupRequest(Struct, forbid_unknown_fields=True):
    email: str


class TransferChange(Struct, forbid_unknown_fields=True):
    stored_status: Annotated[Text, Meta(min_length=1, max_length=100)] | None = None
    expires_in_seconds: Annotated[float, Meta(ge=-(10**9), le=10**9)] | None = None


class NewEvents(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=defaults.MAX_SYNTHETIC_EVENTS_PER_CALL)] = 1
    type: str = "transfer_sent"
    data: dict[str, Any] = field(default_factory=lambda: {"synthetic": True})
