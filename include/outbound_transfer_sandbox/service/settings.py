"""Changes of the account's settings, whoever asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outbound_transfer_sandbox.errors import invalid_request
from outbound_transfer_sandbox.models import Account


def changed(account: Account, changes: Mapping[str, Any], *, strict: bool = True) -> Account:
    """The account with `changes`; not `strict` reads numbers and switches from text. Raises 400 invalid_request."""
    try:
        return msgspec.convert({**msgspec.to_builtins(account), **changes}, Account, strict=strict)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error)) from None
