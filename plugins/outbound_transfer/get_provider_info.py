"""Metadata that Airflow reads when it starts: keep this module free of imports."""

from __future__ import annotations

from typing import Any

_SERVICE = "Outbound Transfer Service"
_TEXT = {"type": ["string", "null"]}


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _SERVICE, "python-modules": [f"outbound_transfer.{name}" for name in names]}]


def _option(description: str, **others: str) -> dict[str, Any]:
    base = {"version_added": "0.1.0", "type": "string", "example": None, "default": ""}
    return base | {"description": description, **others}


_INFO: dict[str, Any] = {
    "package-name": "airflow-provider-outbound-transfer",
    "name": "Outbound Transfer",
    "description": "Deliver files through the Outbound Transfer Service and load its event feed into a warehouse.",
    "integrations": [
        {
            "integration-name": _SERVICE,
            "external-doc-url": "https://example.github.io/airflow-provider-outbound-transfer/",
            "logo": "/docs/images/logo.svg",
            "how-to-guide": ["/docs/operators.md"],
            "tags": ["service"],
        }
    ],
    "connection-types": [
        {
            "connection-type": "outbound_transfer",
            "hook-class-name": "outbound_transfer.hooks.outbound_transfer.OutboundTransferHook",
            "hook-name": "Outbound Transfer",
            "ui-field-behaviour": {
                # The port is shown because "Test" of Airflow 3.3.2 refuses whatever is saved without one.
                "hidden-fields": ["schema", "login"],
                "relabeling": {"host": "Service address", "password": "Transfer API key"},
                "placeholders": {"host": "https://account.example.com", "port": "443"},
            },
            "conn-fields": {
                "event_api_key": {
                    "label": "Event API key",
                    "description": "Only for reading the event feed; begins with obs_.",
                    "schema": _TEXT | {"format": "password"},
                },
                "timeout": {
                    "label": "Timeout (seconds)",
                    "description": "How long the service may take for each step of a call.",
                    "schema": {"type": ["integer", "null"], "default": 60, "minimum": 1, "maximum": 3600},
                },
                "verify": {
                    "label": "Verify TLS",
                    "description": "Check the service's certificate. Turn off only for a test service.",
                    "schema": {"type": "boolean", "default": True},
                },
                "web_url": {
                    "label": "Web application",
                    "description": (
                        "Address of the account's web application, for links; {transfer_id} in it stands for a "
                        "transfer's id. Without it, /transfers/ and the id are appended."
                    ),
                    "schema": _TEXT,
                },
                "rehearse": {
                    "label": "Rehearse",
                    "description": "Do everything but the send, then discard the draft: nothing is delivered.",
                    "schema": {"type": "boolean", "default": False},
                },
            },
        }
    ],
    "hooks": _modules("hooks.outbound_transfer"),
    "operators": _modules("operators.transfer", "operators.approval", "operators.draft", "operators.redelivery"),
    "sensors": _modules("sensors.transfer"),
    "triggers": _modules("triggers.transfer"),
    "task-decorators": [
        {"name": "deliver_files", "class-name": "outbound_transfer.decorators.deliver_files.deliver_files_task"}
    ],
    "extra-links": ["outbound_transfer.links.transfer.TransferLink"],
    "notifications": [
        "outbound_transfer.notifications.slack.TransferSlackNotifier",
        "outbound_transfer.notifications.smtp.TransferSmtpNotifier",
    ],
    "asset-uris": [
        {
            "schemes": ["outbound-transfer"],
            "handler": "outbound_transfer.assets.outbound_transfer.sanitize_uri",
            "factory": "outbound_transfer.assets.outbound_transfer.create_asset",
            "to_openlineage_converter": "outbound_transfer.operators.openlineage.convert_asset_to_openlineage",
        }
    ],
    "transfers": [
        {
            "source-integration-name": source,
            "target-integration-name": target,
            "python-module": f"outbound_transfer.transfers.{module}",
        }
        for source, module, target in (
            (_SERVICE, "event_feed_to_sql", "Common SQL"),
            (_SERVICE, "transfers_to_sql", "Common SQL"),
            (_SERVICE, "event_feed_to_iceberg", "Apache Iceberg"),
            ("Common SQL", "sql_to_outbound_transfer", _SERVICE),
        )
    ],
    "cli": ["outbound_transfer.cli.console.get_commands"],
    "config": {
        "outbound_transfer": {
            "description": "The deliveries table, and the personal data that is stored.",
            "options": {
                "rehearse": _option(
                    "Whether every connection rehearses: a delivery does everything but its send, then discards "
                    "its draft and is skipped. A connection's extra field rehearse does the same for that "
                    "connection.",
                    type="boolean",
                    default="False",
                ),
                "deliveries_conn_id": _option(
                    "Connection of the SQL database with the deliveries table: what tasks remember from attempt to "
                    "attempt, and what the page shows. PostgreSQL, MySQL, MariaDB or SQLite. Needed unless all of "
                    "Airflow runs on one machine, with its SQLite database airflow.db in AIRFLOW_HOME and the "
                    "LocalExecutor: the table is then in the file outbound_transfer.db beside it. Triggerers share "
                    "the pages that they poll through the same database.",
                    example="outbound_transfer_warehouse",
                ),
                "deliveries_table_prefix": _option("Prefix of these tables' names.", default="outbound_transfer_"),
                "deliveries_schema": _option("Schema of these tables; if empty, the connection's own."),
                "recipients": _option(
                    "What the deliveries and transfers tables store about recipients: their names and addresses "
                    "(names), or only their number (none); the page shows the same. Event payloads are stored as "
                    "received.",
                    default="names",
                    example="none",
                ),
            },
        }
    },
}


def get_provider_info() -> dict[str, Any]:
    """The provider's description (Airflow's provider_info schema)."""
    return _INFO
