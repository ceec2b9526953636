"""What may stand for a transfer where one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.protocol.models import is_unicode


def transfer_id_of(given: Any) -> str:
    """The id of a transfer that is named by it, or given as a mapping: the result of the task that delivered it.

    :raises InvalidDelivery: it is none, such as the XCom of a task that pushed nothing.
    """
    transfer_id = given.get("id") if isinstance(given, Mapping) else given
    # "None" is what a template makes of None.
    if not isinstance(transfer_id, str) or transfer_id.strip() in ("", "None") or not is_unicode(transfer_id):
        raise InvalidDelivery(
            f"transfer_id is no transfer's id, but {_shown(given)}. Give the id, or the result of the task that made "
            "the delivery; None is what the XCom of a task gives that did not push any."
        )
    return transfer_id


def _shown(given: Any) -> str:
    if isinstance(given, Mapping):
        return f"a mapping whose id is {given.get('id')!r:.100}"
    return f"{given!r:.100}" if given is None else f"{given!r:.100} ({type(given).__name__})"
