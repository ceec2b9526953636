"""Resolves the argument ``transfer_id`` of operators, sensors and triggers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.protocol.models import is_valid_unicode


def resolve_transfer_id(given: Any) -> str:
    """Return the id of a transfer.

    :param given: the id, or a mapping with the key ``id``: the result of the task that made the delivery.
    :raises InvalidDelivery: it is neither, for example None from the XCom of a task that pushed nothing.
    """
    transfer_id = given.get("id") if isinstance(given, Mapping) else given
    # A template renders None as "None".
    if not isinstance(transfer_id, str) or transfer_id.strip() in ("", "None") or not is_valid_unicode(transfer_id):
        raise InvalidDelivery(
            f"transfer_id must be the id of a transfer, or the result of the task that made the delivery, not "
            f"{_describe(given)}. None usually means that the task pushed no XCom."
        )
    return transfer_id


def _describe(given: Any) -> str:
    if isinstance(given, Mapping):
        return f"a mapping whose id is {given.get('id')!r:.100}"
    return f"{given!r:.100}" if given is None else f"{given!r:.100} ({type(given).__name__})"
