"""The Iceberg catalog behind an Airflow connection, and its secrets kept out of errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from outbound_transfer.airflow_compat.names import BaseHook, mask_secret
from outbound_transfer.protocol.redaction import quotes_secret, redact
from outbound_transfer.warehouse.errors import NotAnIcebergConnection, WarehouseBusy, WarehouseError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: Parts of the names of a catalog's properties that have a secret.
_SECRET_NAMES: Final = (
    "secret",
    "token",
    "credential",
    "password",
    "key",
    "auth",
    "header",
    "connection-string",
    "sas",
)

#: Shorter values of a connection's extra are settings, and would be found in any error.
_MIN_SECRET_LENGTH: Final = 4


@contextmanager
def hide_secrets(secrets: tuple[str, ...]) -> Iterator[None]:
    """Raise an error that quotes a secret as another one, without it.

    :raises WarehouseBusy: instead, with the redacted text; the task's retries go on.
    """
    try:
        yield
    except WarehouseError:
        raise
    except Exception as error:
        if not any(quotes_secret(str(each), secrets) for each in _chain(error)):
            raise
        raise WarehouseBusy(f"{type(error).__name__}: {redact(str(error), secrets)}") from None


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and those that a log shows with it."""
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in chain:
        chain.append(found)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return chain


def _redact(text: str, secrets: tuple[str, ...]) -> str:
    return redact(text, secrets) if quotes_secret(text, secrets) else text


class IcebergCatalog:
    """A catalog of pyiceberg, and the secrets that it was opened with."""

    def __init__(self, catalog: Catalog, secrets: tuple[str, ...] = ()) -> None:
        self.catalog, self.secrets = catalog, secrets

    def hide_secrets(self) -> AbstractContextManager[None]:
        """Return a context in which no error quotes a secret; see :func:`hide_secrets`."""
        return hide_secrets(self.secrets)

    def redact(self, text: str) -> str:
        """Return a text without the secrets; unchanged if it has none."""
        return _redact(text, self.secrets)

    def close(self) -> None:
        """Close its connections; the next use opens them again."""
        self.catalog.close()


def open_catalog(iceberg_conn_id: str) -> IcebergCatalog:
    """Return the catalog of a connection.

    :raises NotAnIcebergConnection: the connection is of another type, or its provider or pyiceberg is not installed.
    :raises WarehouseBusy: the catalog cannot be opened, and the error quotes a secret.
    """
    connection = BaseHook.get_connection(iceberg_conn_id)
    if connection.conn_type != "iceberg":
        raise NotAnIcebergConnection(f"connection '{iceberg_conn_id}' is not of the type iceberg")
    secrets = tuple(_secrets_of(connection))
    for secret in secrets:
        mask_secret(secret)
    hook = _hook(iceberg_conn_id)
    with hide_secrets(secrets):
        return IcebergCatalog(hook.catalog, secrets)


def _hook(iceberg_conn_id: str) -> Any:
    try:
        import_module("pyiceberg_core")  # pyiceberg computes partitions with it
        from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook
    except ImportError as error:
        raise NotAnIcebergConnection(
            "tables of Iceberg need apache-airflow-providers-apache-iceberg and pyiceberg with pyarrow: "
            f"pip install 'airflow-provider-outbound-transfer[iceberg]' ({error})"
        ) from error
    if not hasattr(IcebergHook, "catalog"):
        raise NotAnIcebergConnection(
            "this version of apache-airflow-providers-apache-iceberg opens no catalog: install 2.0 or newer"
        )
    return IcebergHook(iceberg_conn_id)


def _secrets_of(connection: Any) -> Iterator[str]:
    """Yield the secrets of a connection: its password, those of its extra, and those of addresses in it."""
    if connection.password:
        yield connection.password
    if connection.host:
        yield from _secrets_of_address(connection.host)
    yield from _secrets_in(connection.extra_dejson or {}, is_secret=False)


def _secrets_in(value: Any, *, is_secret: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _secrets_in(each, is_secret=_is_secret_name(str(name), within=is_secret))
    elif isinstance(value, list):
        for each in value:
            yield from _secrets_in(each, is_secret=is_secret)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        text = str(value)
        yield from _secrets_of_address(text)
        if is_secret and len(text) >= _MIN_SECRET_LENGTH and text.lower() not in ("true", "false"):
            yield text


def _is_secret_name(name: str, *, within: bool) -> bool:
    """Return whether a property is secret; not the type of an authentication, nor its server's address."""
    plain = name.lower().replace("_", "-")
    if plain == "type" or plain.endswith(("uri", "url")):
        return False
    return within or any(part in plain for part in _SECRET_NAMES)


def _secrets_of_address(address: str) -> Iterator[str]:
    """Yield the password of an address, and the values of its query."""
    passwords = re.findall(r"//[^:@/]*:(.*)@", address)  # one with a slash, too, which is not quoted as it should be
    query = ""
    with suppress(ValueError):  # it is no address
        parts = urlsplit(address)
        query, passwords = parts.query, [*passwords, parts.password or ""]
    for password in filter(None, passwords):
        yield from {password, unquote(password)}
    yield from (value for _, value in parse_qsl(query) if len(value) >= _MIN_SECRET_LENGTH)
