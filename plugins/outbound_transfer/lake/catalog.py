"""The Iceberg catalog behind an Airflow connection, and its secrets kept out of errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from outbound_transfer.airflow_compat.names import BaseHook, mask_secret
from outbound_transfer.protocol.redaction import redact
from outbound_transfer.warehouse.errors import NotAnIcebergConnection, WarehouseBusy, WarehouseError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: Parts of the names of a catalog's properties that have a secret.
_SECRET_NAMES: Final = ("secret", "token", "credential", "password", "access-key", "account-key", "sas", "json-key")


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
        shown = _redact(str(error), secrets)
        if shown == str(error):
            raise
        raise WarehouseBusy(f"{type(error).__name__}: {shown}") from None


def _redact(text: str, secrets: tuple[str, ...]) -> str:
    return redact(text, secrets) if any(secret in text for secret in secrets) else text


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
    """Yield the secrets of a connection: its password, those of its extra, and the passwords of addresses in it."""
    extra = connection.extra_dejson or {}
    if connection.password:
        yield connection.password
    for name, value in extra.items():
        if isinstance(value, str) and value and any(part in name.lower() for part in _SECRET_NAMES):
            yield value
    for address in (connection.host, *extra.values()):
        yield from _password_of(address)


def _password_of(address: Any) -> Iterator[str]:
    try:
        password = urlsplit(address).password if isinstance(address, str) else None
    except ValueError:
        return
    if password:
        yield from {password, unquote(password)}
