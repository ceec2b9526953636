"""Reading the upload's headers (service.md, POST /v1/transfers/{transfer_id}/files)."""

from __future__ import annotations

import unicodedata
from email.message import Message

from . import unspecified
from .errors import invalid_request

# The two charsets that RFC 5987 asks of a receiver; any other makes the parameter unusable.
_CHARSETS = {"utf-8", "iso-8859-1"}


def filename(disposition: str | None) -> str:
    """The filename that a Content-Disposition value carries, directory parts stripped.

    `disposition` is the raw value decoded as Latin-1. `filename*` wins over `filename` wherever it stands; one that
    cannot be decoded is ignored, as RFC 8187 section 3.2.1 allows. Raises 400 invalid_request when no usable name is
    left.
    """
    if disposition is None:
        raise invalid_request("Content-Disposition is missing: it carries the filename.")
    # The library that reads it takes time with the square of these two.
    if len(disposition) > unspecified.MAX_DISPOSITION or disposition.count(";") > unspecified.MAX_PARAMETERS:
        raise invalid_request("Content-Disposition is too long.")
    name = _base_name(_declared_name(disposition))
    if name.strip() in {"", ".", ".."} or any(unicodedata.category(c) in {"Cc", "Cs"} for c in name):
        raise invalid_request("Content-Disposition: the filename is empty or unusable.")
    return name


def _declared_name(disposition: str) -> str:
    parameters = _parameters(disposition)
    extended = [_decode(*value) for value in parameters if isinstance(value, tuple)]
    plain = [value.encode("latin-1") for value in parameters if isinstance(value, str)]
    if len(extended) > 1 or len(plain) > 1:
        raise invalid_request("Content-Disposition: the filename is given twice.")
    if extended and extended[0] is not None:
        return extended[0]
    return _guess(plain[0]) if plain else ""


def _parameters(disposition: str) -> list[str | tuple[str | None, str | None, str]]:
    """The values of `filename` (str) and `filename*` (charset, language, value) in the header."""
    message = Message()
    message["Content-Disposition"] = disposition
    try:
        kind, *parameters = message.get_params([], "content-disposition")
    except (TypeError, ValueError):  # what the library does with contradictory RFC 2231 continuations
        raise invalid_request("Content-Disposition cannot be read.") from None
    if kind[0].strip().lower() != "attachment":
        raise invalid_request("Content-Disposition must be attachment; filename=<name>.")
    return [value for name, value in parameters if name.lower() == "filename"]


def _decode(charset: str | None, _language: str | None, value: str) -> str | None:
    """The value of a `filename*`, whose octets come as Latin-1 characters; None when they are not in its charset."""
    if (charset or "").lower() not in _CHARSETS:
        return None
    try:
        return value.encode("latin-1").decode(charset or "")
    except UnicodeError:
        return None


def _guess(octets: bytes) -> str:
    """A plain `filename` outside ASCII: UTF-8 where it is that, Latin-1 otherwise."""
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets.decode("latin-1")


def _base_name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]
