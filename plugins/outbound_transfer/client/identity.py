"""Whether a transfer is the expected one. Its id does not prove it, because another account may use the same id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from outbound_transfer.client.addresses import normalize_address, normalize_text
from outbound_transfer.client.models import NewTransfer, Transfer

#: Subject and sorted addresses, normalized for case, white space and composed characters.
Identity: TypeAlias = tuple[str, tuple[str, ...]]


def identity_of(transfer: Transfer | NewTransfer) -> Identity:
    """Return the subject and the addresses of a transfer; those of a draft cannot change (service-api.md, R20)."""
    addresses = (normalize_address(recipient.email) for recipient in transfer.recipients)
    return normalize_text(transfer.subject), tuple(sorted(addresses))


def has_exactly_files(transfer: Transfer, files: Mapping[str, int]) -> bool:
    """Return whether a transfer has exactly these files.

    :param files: sizes in bytes, by name.
    :return: False also if the transfer does not include its files, as in a listing.
    """
    return transfer.files is not None and sorted((file.name, file.size) for file in transfer.files) == sorted(
        files.items()
    )
