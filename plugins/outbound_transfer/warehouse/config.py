"""The section of Airflow's configuration that says where the table of deliveries is."""

from __future__ import annotations

import logging
from typing import Final, TypedDict

from outbound_transfer.airflow_compat.names import conf
from outbound_transfer.store.personal_data import RecipientNaming
from outbound_transfer.warehouse.naming import DEFAULT_PREFIX

log = logging.getLogger(__name__)

_SECTION: Final = "outbound_transfer"


class TableNaming(TypedDict):
    """The prefix and the schema of the configured tables; the connection's own schema if it is None."""

    prefix: str
    schema: str | None


def get_option(name: str, default: str = "") -> str:
    """Return an option of the section, or the default if the section does not have it."""
    return str(conf.get(_SECTION, name, fallback=default))


def recipient_mode() -> str:
    """Return the mode of :func:`recipient_naming`, for which no key is needed."""
    return get_option("recipients", "names").strip().lower()


def recipient_naming() -> RecipientNaming:
    """Return how recipients are stored: an unknown mode, or no key, stores none."""
    try:
        key = get_option("pseudonym_key")
    except Exception as error:  # of a command, or of any secrets backend
        log.warning("Recipients get no pseudonyms: pseudonym_key cannot be read: %s", type(error).__name__)
        key = ""
    return RecipientNaming(recipient_mode(), key)


def table_naming() -> TableNaming:
    """Return how the tables of deliveries, and of what triggerers share, are named."""
    return TableNaming(
        prefix=get_option("deliveries_table_prefix", DEFAULT_PREFIX), schema=get_option("deliveries_schema") or None
    )


def deliveries_conn_id() -> str:
    """Return the connection of the tables that tasks and triggerers share; "" if none is configured."""
    return get_option("deliveries_conn_id")
