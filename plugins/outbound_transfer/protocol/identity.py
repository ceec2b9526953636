"""Whether a transfer is the expected one. Its id does not prove it, because another account may use the same id."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TypeAlias

from outbound_transfer.protocol.addresses import is_plain_address, normalize_address, normalize_text
from outbound_transfer.protocol.models import NewTransfer, Transfer, UnreadableRow

#: Subject and sorted addresses, normalized for case, white space and composed characters.
Identity: TypeAlias = tuple[str, tuple[str, ...]]

#: The same, with None for a part that is unknown.
KnownIdentity: TypeAlias = tuple[str | None, tuple[str, ...] | None]


def identity_of(transfer: Transfer | NewTransfer) -> Identity:
    """Return the subject and the addresses of a transfer; those of a draft cannot change (service-api.md, R20)."""
    addresses = (normalize_address(recipient.email) for recipient in transfer.recipients)
    return normalize_text(transfer.subject), tuple(sorted(addresses))


def known_identity_of(row: Transfer | UnreadableRow) -> KnownIdentity:
    """Return what a response says about the subject and the addresses of a sent transfer.

    A sent transfer has a subject and recipients (service-api.md, R22), so a part that is empty is unknown, not empty.
    So is one with a character that could not be read (U+FFFD).
    """
    subject = normalize_text(row.subject or "")
    addresses = row.addresses or () if isinstance(row, UnreadableRow) else [each.email for each in row.recipients]
    has_addresses = bool(addresses) and all(map(is_plain_address, addresses))
    return (
        subject if subject and "\ufffd" not in subject else None,
        tuple(sorted(map(normalize_address, addresses))) if has_addresses else None,
    )


def may_be_equal(left: KnownIdentity, right: KnownIdentity) -> bool:
    """Return whether no part that is known on both sides differs."""
    return all(None in pair or pair[0] == pair[1] for pair in zip(left, right, strict=True))


def may_have_had(row: KnownIdentity, wanted: Identity, possible: Set[str] | None) -> bool:
    """Return whether a transfer may be the wanted one, made when others of the possible addresses were wanted.

    :param possible: normalized addresses; None if they may be any.
    """
    (subject, addresses), (wanted_subject, wanted_addresses) = row, wanted
    if addresses is None or subject not in (None, wanted_subject):
        return False
    return (possible is None or set(addresses) <= possible) and not set(addresses).isdisjoint(wanted_addresses)


def has_exactly_files(transfer: Transfer, files: Mapping[str, int]) -> bool:
    """Return whether a transfer has exactly these files.

    :param files: sizes in bytes, by name.
    :return: False also if the transfer does not include its files, as in a listing.
    """
    return transfer.files is not None and sorted((file.name, file.size) for file in transfer.files) == sorted(
        files.items()
    )
