"""Changes to the account's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outbound_transfer_sandbox.domain.errors import invalid_request
from outbound_transfer_sandbox.domain.models import Account


def apply_changes(account: Account, changes: Mapping[str, Any], *, strict: bool = True) -> Account:
    """Return the account with `changes`. Without `strict`, text is converted. Raises 400 invalid_request."""
    try:
        return msgspec.convert({**msgspec.to_builtins(account), **changes}, Account, strict=strict)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error)) from None
