"""The filename in the Content-Disposition header of an upload (service-api.md, R30)."""

from __future__ import annotations

import unicodedata
from email.message import Message

from . import defaults
from .errors import invalid_request

# RFC 5987 requires receivers to support these two charsets. A parameter in another one is ignored.
_CHARSETS = {"utf-8", "iso-8859-1"}


def filename(disposition: str | None) -> str:
    """Return the filename in a Content-Disposition value, without directories.

    `disposition` is the raw value decoded as Latin-1. `filename*` takes precedence over `filename` in either order; if
    it cannot be decoded, it is ignored, as RFC 8187 section 3.2.1 allows. Raises 400 invalid_request if there is no
    usable name.
    """
    if disposition is None:
        raise invalid_request("Content-Disposition is missing. It must contain the filename.")
    # Parsing takes time with the square of both.
    if (
        len(disposition) > defaults.MAX_DISPOSITION_LENGTH
        or disposition.count(";") > defaults.MAX_DISPOSITION_PARAMETERS
    ):
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
    return _decode_plain(plain[0]) if plain else ""


def _parameters(disposition: str) -> list[str | tuple[str | None, str | None, str]]:
    """Return the values of `filename` (str) and `filename*` (charset, language, value)."""
    message = Message()
    message["Content-Disposition"] = disposition
    try:
        kind, *parameters = message.get_params([], "content-disposition")
    except (TypeError, ValueError):  # the library fails on contradictory RFC 2231 continuations
        raise invalid_request("Content-Disposition cannot be read.") from None
    if kind[0].strip().lower() != "attachment":
        raise invalid_request("Content-Disposition must be attachment; filename=<name>.")
    return [value for name, value in parameters if name.lower() == "filename"]


def _decode(charset: str | None, _language: str | None, value: str) -> str | None:
    """Decode a `filename*`, given as Latin-1 characters. Returns None if it is not in its charset."""
    if (charset or "").lower() not in _CHARSETS:
        return None
    try:
        return value.encode("latin-1").decode(charset or "")
    except UnicodeError:
        return None


def _decode_plain(octets: bytes) -> str:
    """Decode a plain `filename` as UTF-8, or as Latin-1 if it is not valid UTF-8."""
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets.decode("latin-1")


def _base_name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]
