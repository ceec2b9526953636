"""The Iceberg catalog behind an Airflow connection, whose secrets Airflow masks in logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from outbound_transfer.airflow_compat.names import BaseHook, mask_secret
from outbound_transfer.store.errors import NotAnIcebergConnection

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: Names of properties that have a secret, and of those that have none all the same: the type of an authentication, and
#: its server's address.
_SECRET: Final = re.compile("secret|token|credential|password|key|auth|header|connection-string|sas")
_PLAIN: Final = re.compile("(^|-)type$|ur[il]$")


def open_catalog(iceberg_conn_id: str) -> Catalog:
    """Return the catalog of a connection.

    :raises NotAnIcebergConnection: the connection is of another type, or its provider or pyiceberg is not installed.
    """
    connection = BaseHook.get_connection(iceberg_conn_id)
    if connection.conn_type != "iceberg":
        raise NotAnIcebergConnection(f"connection '{iceberg_conn_id}' does not have the type iceberg")
    # Airflow masks the password, but the extra only as a whole text.
    for secret in _secrets_in({"host": connection.host, **connection.extra_dejson}):
        mask_secret(secret)
    try:
        import_module("pyiceberg_core")  # pyiceberg computes partitions with it
        from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook
    except ImportError as error:
        raise NotAnIcebergConnection(
            "Iceberg tables need apache-airflow-providers-apache-iceberg and pyiceberg with pyarrow: "
            f"pip install 'airflow-provider-outbound-transfer[iceberg]' ({error})"
        ) from error
    if not hasattr(IcebergHook, "catalog"):
        raise NotAnIcebergConnection("apache-airflow-providers-apache-iceberg is too old: install 2.0 or newer")
    catalog: Catalog = IcebergHook(iceberg_conn_id).catalog
    return catalog


def _secrets_in(value: Any, name: str = "") -> Iterator[str]:
    """Yield the secrets in a property, whose name has those of the properties around it."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _secrets_in(each, f"{name}-{key}".lower().replace("_", "-"))
    elif isinstance(value, list):
        for each in value:
            yield from _secrets_in(each, name)
    elif isinstance(value, str):
        yield from _secrets_of_address(value)
        if _SECRET.search(name) and not _PLAIN.search(name):
            yield from value.split()  # a header has the kind of its secret before it


def _secrets_of_address(address: str) -> Iterator[str]:
    """Yield the password of an address, and the values of its query."""
    passwords = re.findall(r"//[^:@/]*:(.*)@", address)  # one with a slash, too, whose parts errors quote
    for password in (*passwords, *re.findall(r"[?&][^=&#]+=([^&#]*)", address)):
        yield from {password, unquote(password), *password.split("/")}
