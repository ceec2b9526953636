"""Whether a transfer is the one that is meant. An id is no identity: another account may have the same one."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from outbound_transfer.protocol.models import NewTransfer, Transfer

#: A transfer's subject and addresses in one form, whatever the service does to case, spaces and composed characters.
Identity: TypeAlias = tuple[str, tuple[str, ...]]


def identity_of(transfer: Transfer | NewTransfer) -> Identity:
    """What a transfer is told by: its subject and who receives it. A draft's cannot be changed (States, rule 2)."""
    return _plain(transfer.subject), tuple(sorted(_address(recipient.email) for recipient in transfer.recipients))


def duplicate_addresses(addresses: Iterable[str]) -> list[str]:
    """Those of the addresses that come twice: the service does not merge them (POST /v1/transfers, recipients)."""
    counts = Counter(map(_address, addresses))
    return sorted(address for address, count in counts.items() if count > 1)


def holds_just(transfer: Transfer, files: Mapping[str, int]) -> bool:
    """Whether the transfer holds files of just these names and sizes in bytes; False where it does not say."""
    return transfer.files is not None and {file.name: file.size for file in transfer.files} == dict(files)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _address(address: str) -> str:
    local, at, domain = _plain(address).rpartition("@")
    with suppress(UnicodeError):  # then it is compared as it is
        domain = domain.encode("idna").decode()
    return f"{local}{at}{domain}"
