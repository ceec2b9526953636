"""What Airflow reads of this provider at start: keep it free of imports."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": ["string", "null"]}


def get_provider_info() -> dict[str, Any]:
    """The provider's description (Airflow's provider_info schema)."""
    return {
        "package-name": "airflow-provider-outbound-transfer",
        "name": "Outbound Transfer",
        "description": "Deliver files through the Outbound Transfer Service and load its event feed into a warehouse.",
        "integrations": [
            {
                "integration-name": "Outbound Transfer Service",
                "external-doc-url": "https://account.example.com/",
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
                        "description": "How long the service may take over each step of a call.",
                        "schema": {"type": ["integer", "null"], "default": 60, "minimum": 1, "maximum": 3600},
                    },
                    "verify": {
                        "label": "Verify TLS",
                        "description": "Check the service's certificate. Switch off only against a test service.",
                        "schema": {"type": "boolean", "default": True},
                    },
                    "web_url": {
                        "label": "Web application",
                        "description": (
                            "Address of the account's web application, for links; {transfer_id} in it stands for a "
                            "transfer's id, else a transfer is looked for at /transfers/ and its id."
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
        "hooks": [
            {
                "integration-name": "Outbound Transfer Service",
                "python-modules": ["outbound_transfer.hooks.outbound_transfer"],
            }
        ],
        "operators": [
            {
                "integration-name": "Outbound Transfer Service",
                "python-modules": ["outbound_transfer.operators.transfer", "outbound_transfer.operators.redelivery"],
            }
        ],
        "sensors": [
            {
                "integration-name": "Outbound Transfer Service",
                "python-modules": ["outbound_transfer.sensors.transfer"],
            }
        ],
        "triggers": [
            {
                "integration-name": "Outbound Transfer Service",
                "python-modules": ["outbound_transfer.triggers.transfer"],
            }
        ],
        "task-decorators": [
            {
                "name": "deliver_files",
                "class-name": "outbound_transfer.decorators.deliver_files.deliver_files_task",
            }
        ],
        "extra-links": [
            "outbound_transfer.links.transfer.TransferLink",
        ],
        "notifications": [
            "outbound_transfer.notifications.slack.TransferSlackNotifier",
            "outbound_transfer.notifications.smtp.TransferSmtpNotifier",
        ],
        "asset-uris": [
            {
                "schemes": ["outbound-transfer"],
                "handler": "outbound_transfer.assets.outbound_transfer.sanitize_uri",
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
                ("Outbound Transfer Service", "event_feed_to_sql", "Common SQL"),
                ("Outbound Transfer Service", "transfers_to_sql", "Common SQL"),
                ("Outbound Transfer Service", "event_feed_to_iceberg", "Apache Iceberg"),
                ("Outbound Transfer Service", "event_feed_to_object_storage", "Common IO"),
                ("Common SQL", "sql_to_outbound_transfer", "Outbound Transfer Service"),
            )
        ],
        "cli": ["outbound_transfer.cli.definition.get_commands"],
        "config": {
            "outbound_transfer": {
                "description": "The delivery ledger, what the page of deliveries reads, and the state of deliveries.",
                "options": {
                    "rehearse": {
                        "description": (
                            "Whether every connection rehearses: a delivery does everything but its send, then "
                            "discards its draft and is skipped. A connection's extra field rehearse does the same for "
                            "that connection."
                        ),
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": None,
                        "default": "False",
                    },
                    "deliveries_conn_id": {
                        "description": (
                            "Connection of the SQL database where deliveries keep their state from try to try. If it "
                            "is empty, they use Airflow's task state store; before Airflow 3.3, and for delivery keys, "
                            "the connection of the ledger, or a file if all of Airflow runs on one machine. Triggerers "
                            "share the pages of their polls in it."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "outbound_transfer_warehouse",
                        "default": "",
                    },
                    "ledger_conn_id": {
                        "description": (
                            "Connection of the SQL database where deliveries are recorded and which the page shows: "
                            "the warehouse, as a rule. Where it is empty, default_ledger decides."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "outbound_transfer_warehouse",
                        "default": "",
                    },
                    "default_ledger": {
                        "description": (
                            "Whether deliveries are recorded without ledger_conn_id, if all of Airflow runs on one "
                            "machine: with its SQLite database airflow.db in AIRFLOW_HOME and the LocalExecutor. They "
                            "are then in the file outbound_transfer.db beside it. Elsewhere the log of each "
                            "delivery says that the page does not show it, unless this is False."
                        ),
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": None,
                        "default": "True",
                    },
                    "recipients": {
                        "description": (
                            "What ledger and tables of transfers have of recipients: their names and addresses, keyed "
                            "pseudonyms (see pseudonym_key), or none, but their number; the page shows the same. "
                            "The payloads of events are stored as received."
                        ),
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "pseudonyms",
                        "default": "names",
                    },
                    "pseudonym_key": {
                        "description": "A secret, the same in all of Airflow. Without it, pseudonyms are not stored.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "sensitive": True,
                        "example": None,
                        "default": "",
                    },
                    "ledger_table_prefix": {
                        "description": "Begins the names of the ledger's tables and of the table of states.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": None,
                        "default": "outbound_transfer_",
                    },
                    "ledger_schema": {
                        "description": "Where the tables are; the connection's own where empty.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": None,
                        "default": "",
                    },
                },
            }
        },
    }
