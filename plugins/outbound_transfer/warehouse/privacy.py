"""What is stored in the place of addresses, and what each place can do with the rows about a person.

An erased address stays on a list, next to the rows, as a keyed digest. Whatever is loaded is compared with the list, so
neither a page that is read again nor a transfer that is listed again brings the person back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final, NamedTuple

from outbound_transfer.protocol.digests import digest_with
from outbound_transfer.protocol.personal_data import ERASED, HIDDEN, Replace, redact
from outbound_transfer.warehouse.config import get_option
from outbound_transfer.warehouse.errors import InvalidPrivacy

NAMES, PSEUDONYMS, NONE = MODES = ("names", "pseudonyms", "none")

#: What an export has in the place of the addresses of others.
OTHER: Final = f"another{HIDDEN}"


class PrivacyConfig(NamedTuple):
    """How addresses are stored.

    :ivar recipients: one of :data:`MODES`.
    :ivar keys: the newest first, which pseudonyms and new digests are made with; the last is always empty.
    """

    recipients: str = NAMES
    keys: tuple[str, ...] = ("",)

    def digest(self, address: str) -> str:
        """Return what is kept of an address that is erased."""
        return _digest(address, self.keys[0])

    def replacement(self, erased: Collection[str]) -> Replace | None:
        """Return what is stored in the place of addresses; None if all of them are stored.

        :param erased: digests of the addresses that are not to be stored.
        :raises InvalidPrivacy: they were made with a key that is not known here.
        """
        if unknown := {each.partition("$")[0] for each in erased} - set(map(_key_id, self.keys)):
            raise InvalidPrivacy(
                f"addresses were erased with a privacy_key that this process does not have ({', '.join(unknown)}), so "
                "they would be stored again: add it behind the newer ones, with a comma"
            )
        if self.recipients == NAMES and not erased:
            return None

        def replace(address: str) -> str | None:
            if address.endswith(HIDDEN):
                return None
            if self.recipients == NONE or any(_digest(address, key) in erased for key in self.keys):
                return ERASED
            return None if self.recipients == NAMES else _pseudonym(address, self.keys[0])

        return replace


def read_privacy() -> PrivacyConfig:
    """Return the configuration.

    :raises InvalidPrivacy: it is not valid.
    """
    recipients = get_option("recipients", NAMES)
    keys = tuple(filter(None, map(str.strip, get_option("privacy_key").split(","))))
    if recipients not in MODES or (recipients == PSEUDONYMS and not keys):
        raise InvalidPrivacy(
            f"[outbound_transfer] recipients is {recipients!r}, and must be one of {', '.join(MODES)}; pseudonyms need "
            "privacy_key, a secret that is the same in all of Airflow"
        )
    return PrivacyConfig(recipients, (*keys, ""))


def _key_id(key: str) -> str:
    return digest_with("", "", key)[1:9]


def _digest(address: str, key: str) -> str:
    return digest_with(address, _key_id(key), key)


def _pseudonym(address: str, key: str) -> str:
    return digest_with(address, "", key)[1:21] + HIDDEN


def without_others(values: dict[str, Any], address: str) -> dict[str, Any]:
    """Return a row for the person with an address, without the addresses of others."""
    shown = {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in values.items()
    }
    others: Replace = lambda other: None if other == address else OTHER  # noqa: E731
    return {name: redact(value, others) if isinstance(value, str) else value for name, value in shown.items()}


class PersonalData(ABC):
    """The rows about persons in one place. Changes nothing of cursors and ids.

    :ivar location: names it.
    """

    location: str

    @abstractmethod
    def find(self, address: str) -> dict[str, list[dict[str, Any]]]:
        """Return the rows that have an address, by table.

        :param address: see :func:`.normalize_address`; also below.
        """

    @abstractmethod
    def erase(self, address: str) -> dict[str, int]:
        """Erase an address and the name beside it, and put it on the list; return the number of rows by table.

        A repetition finds what an interrupted one has left.
        """

    @abstractmethod
    def delete_before(self, time: datetime, *, is_rehearsal: bool) -> dict[str, int]:
        """Delete what is older, but the newest page of a feed; return the number of rows by table.

        :param is_rehearsal: only count them.
        """
