"""What identifies a transfer, or a delivery, in the arguments of operators, sensors and triggers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.models import is_valid_unicode


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


def check_delivery_key(delivery_key: Any) -> str:
    """Return the key if it can be one.

    :raises InvalidDelivery: a template without a value has made it, or a database cannot show it.
    """
    key = delivery_key if isinstance(delivery_key, str) else ""
    if key in ("", "None") or key != key.strip() or not key.isprintable():
        raise InvalidDelivery(
            "delivery_key must be a text of printable characters without spaces around them, and not 'None', which a "
            f"template without a value gives: {delivery_key!r:.300}"
        )
    return key
