"""The Iceberg catalog behind an Airflow connection, whose secrets Airflow masks in logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from outbound_transfer.airflow_compat.names import BaseHook, mask_secret
from outbound_transfer.store.errors import NotAnIcebergConnection

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


def open_catalog(iceberg_conn_id: str) -> Catalog:
    """Return the catalog of a connection.

    :raises NotAnIcebergConnection: the connection is of another type, or its provider or pyiceberg is not installed.
    """
    connection = BaseHook.get_connection(iceberg_conn_id)
    if connection.conn_type != "iceberg":
        raise NotAnIcebergConnection(f"connection '{iceberg_conn_id}' is not of the type iceberg")
    # Airflow masks the password, but the extra only as a whole text.
    for secret in _secrets_in([connection.host, connection.extra_dejson], is_secret=False):
        mask_secret(secret)
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
    catalog: Catalog = IcebergHook(iceberg_conn_id).catalog
    return catalog


def _secrets_in(value: Any, *, is_secret: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _secrets_in(each, is_secret=_is_secret_name(str(name), within=is_secret))
    elif isinstance(value, list):
        for each in value:
            yield from _secrets_in(each, is_secret=is_secret)
    elif isinstance(value, str):
        yield from _secrets_of_address(value)
        if is_secret:
            yield from value.split()  # a header has the kind of its secret before it


def _is_secret_name(name: str, *, within: bool) -> bool:
    """Return whether a property is secret; not the type of an authentication, nor its server's address."""
    plain = name.lower().replace("_", "-")
    if plain == "type" or plain.endswith(("uri", "url")):
        return False
    return within or any(part in plain for part in _SECRET_NAMES)


def _secrets_of_address(address: str) -> Iterator[str]:
    """Yield the password of an address, and the values of its query."""
    passwords = re.findall(r"//[^:@/]*:(.*)@", address)  # one with a slash, too, whose parts errors quote
    with suppress(ValueError):  # it is no address
        parts = urlsplit(address)
        passwords += [parts.password or "", *(value for _, value in parse_qsl(parts.query))]
    for password in passwords:
        yield from {password, unquote(password), *password.split("/")}
