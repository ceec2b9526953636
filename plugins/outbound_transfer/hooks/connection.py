"""Convert an Airflow connection to the client's settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from outbound_transfer.airflow_compat.names import BaseHook, conf, redact
from outbound_transfer.assets.outbound_transfer import SCHEME
from outbound_transfer.client.errors import InvalidSettings

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from outbound_transfer.client.settings import Settings


def _mask_record(record: logging.LogRecord) -> bool:
    # Airflow masks the log of a task, but not the output of its worker (LocalExecutor).
    record.msg, record.args = redact(record.getMessage()), ()
    return True


# They log what the peer sends. A filter does not apply to the records of child loggers, so each logger gets it.
for _name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy"):
    logging.getLogger(_name).addFilter(_mask_record)


class ConnectionExtra(msgspec.Struct):
    """The extra fields of a connection. A connection from the environment has numbers and booleans as strings."""

    event_api_key: str | int = ""
    timeout: float = 0.0  # the default
    verify: bool = True
    web_url: str = ""
    rehearse: bool = False


#: Expected values of the extra fields, for errors.
_EXPECTED: Final = {
    "event_api_key": "a string",
    "timeout": "a number of seconds",
    "verify": "true or false (for your own certificate authority, set SSL_CERT_FILE)",
    "web_url": "a string",
    "rehearse": "true or false",
}


def settings_from_connection(connection: Connection) -> Settings:
    """Return the settings of an Airflow connection; Airflow's configuration can make all connections rehearse.

    :raises InvalidSettings: the error names the field to correct.
    """
    from outbound_transfer.client.settings import DEFAULT_TIMEOUT, Settings

    if (kind := connection.conn_type) != "outbound_transfer":  # its password would be sent to its host as a key
        raise InvalidSettings(f"the type must be outbound_transfer (in a URI outbound-transfer://), not {kind!r:.100}")
    if not isinstance(raw := connection.extra_dejson, Mapping) or (not raw and (connection.extra or "").strip(" {}")):
        raise InvalidSettings("the extra must be a JSON object: it is not JSON, or it is encoded twice")
    # The form leaves empty what is not filled in: false and 0 are values, "", null and [] are not.
    given = {name: value for name, value in raw.items() if value or value in (False, 0)}
    try:
        extra = msgspec.convert(given, ConnectionExtra, strict=False)
    except msgspec.ValidationError as error:  # such as: Expected `float`, got `str` - at `$.timeout`
        field = str(error).rpartition("$.")[2].strip("`")
        raise InvalidSettings(f"the extra field {field} must be {_EXPECTED[field]}") from None
    return Settings(
        base_url=build_base_url(connection.host or "", connection.schema or "", connection.port),
        transfer_api_key=connection.password or "",
        event_api_key=str(extra.event_api_key),
        timeout=extra.timeout or DEFAULT_TIMEOUT,
        verify=extra.verify,
        web_url=extra.web_url,
        rehearses=extra.rehearse or conf.getboolean("outbound_transfer", "rehearse", fallback=False),
    )


def dataset_namespace(conn_id: str) -> str:
    """Return the namespace of the datasets of a connection's account, for lineage."""
    return f"{SCHEME}://{settings_from_connection(BaseHook.get_connection(conn_id)).account}"


def build_base_url(host: str, schema: str = "", port: int | None = None) -> str:
    """Build the service's address from a connection's fields: https by default; port 0 means no port.

    :raises InvalidSettings: the host is not an address, or contains more than the site's address.
    """
    try:
        url = urlsplit(host if "://" in host else f"{schema or 'https'}://{host}")
        if any(character.isspace() for character in host):
            raise ValueError("white space")
    except ValueError:
        raise InvalidSettings("the host is not an address: check its brackets and white space") from None
    if url.path.strip("/"):
        raise InvalidSettings(
            "the host must not contain a path: give the site's address alone, such as https://account.example.com"
        )
    netloc = url.netloc.removesuffix(":0")
    if port and ":" not in netloc.rpartition("]")[2]:
        netloc = f"{netloc}:{port}"
    return urlunsplit(url._replace(netloc=netloc, path=url.path.rstrip("/") + "/"))
