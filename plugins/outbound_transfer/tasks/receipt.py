"""The receipt of a delivery: a JSON document that says what was sent to whom, by which task, and who has picked it up.

``outbound_transfer/receipt.schema.json`` describes it. It holds addresses and names, and no phone, answer or key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec
from airflow.sdk import BaseOperator

from outbound_transfer import __version__
from outbound_transfer.airflow_compat.mapping import is_unmapped
from outbound_transfer.airflow_compat.names import AirflowRescheduleException, timezone
from outbound_transfer.airflow_compat.object_storage import write_whole
from outbound_transfer.client.errors import CallError, InvalidDelivery
from outbound_transfer.client.identity import identity_of
from outbound_transfer.client.models import to_builtins
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.tasks.errors import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from outbound_transfer.client.models import Transfer
    from outbound_transfer.delivery.row import Memory

#: A reader of this version can read any document of this version, which may have further fields.
SCHEMA_VERSION: Final = 1

#: Stands for the transfer's id, which is not known before the draft exists.
PLACEHOLDER: Final = "{transfer_id}"

#: The ``security`` of a transfer for which none was given.
ACCOUNT_DEFAULT: Final = "account_default"

_JINJA: Final = re.compile(r"\{[{%#]")

#: An absolute path or a URI. The placeholder is behind what names the store; Airflow's paths end at "?" and "#".
_RECEIPT: Final = re.compile(
    r"([a-z][a-z0-9+.-]*://[^/{}?#\x00-\x1f]*)?/(?:[^{}?#\x00-\x1f]|\{transfer_id\})*(?<!/)", re.IGNORECASE
)

#: An id that is a file's name as it is. The service promises no format, so another may be a path.
_SAFE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def check_receipt(receipt: Any) -> None:
    """Check where a receipt is to be written.

    :raises InvalidDelivery: it is not the absolute path or the URI of a file, with the placeholder behind the store:
        one receipt would replace another, or the id, which others choose, would choose the store.
    """
    if not isinstance(receipt, str) or PLACEHOLDER not in receipt or not _RECEIPT.fullmatch(receipt):
        raise InvalidDelivery(
            f"receipt must be the URI or the absolute path of a file, with {PLACEHOLDER} in its path, and without "
            "another placeholder, '?', '#' or a control character, such as "
            f"'s3://aws_default@bucket/receipts/{PLACEHOLDER}.json', not {receipt!r:.300}"
        )


def receipt_path(receipt: str, transfer_id: str) -> str:
    """Return where the receipt of a transfer is written. An id that may lead elsewhere is replaced by its SHA-256."""
    digest = sha256(transfer_id.encode(errors="backslashreplace")).hexdigest()
    return receipt.replace(PLACEHOLDER, transfer_id if _SAFE_ID.fullmatch(transfer_id) else digest)


def build_receipt(transfer: Transfer, memory: Memory | None, account: str, ti: Any) -> dict[str, Any]:
    """Return the document. What is not known is None.

    :param memory: of the delivery; None if this Airflow has not made it.
    :param ti: the task instance that writes it.
    """
    shown, digests, security = to_builtins(transfer), dict[str, str](), None
    if memory:
        digests = {held.id: held.sha256 for held in memory.held.values()}
        security = memory.security or ACCOUNT_DEFAULT
    files = shown["files"] and [{**file, "sha256": digests.get(file["id"])} for file in shown["files"]]
    index = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None
    written_by = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": index}
    return {
        "schema_version": SCHEMA_VERSION,
        "provider_version": __version__,
        "written_at": timezone.utcnow().isoformat(timespec="seconds"),
        "written_by": {**written_by, "try_number": int(ti.try_number)},
        "account": account,
        "transfer": {
            **{name: shown[name] for name in ("id", "subject", "status", "sent_at", "expires_at")},
            "security": security,
        },
        "recipients": shown["recipients"],
        "files": files,
    }


class ReceiptMixin(BaseOperator):
    """A task that writes a receipt of its transfer.

    :param receipt: a URI or an absolute path with ``{transfer_id}`` in it.
    """

    outbound_transfer_conn_id: str

    _last_read: Transfer | None = None

    def __init__(self, *, receipt: str | os.PathLike[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.receipt = str(receipt) if isinstance(receipt, os.PathLike) else receipt
        if isinstance(self.receipt, str) and not _JINJA.search(self.receipt) and not is_unmapped(self):
            check_receipt(self.receipt)

    def check_rendered_receipt(self) -> None:
        """:raises AirflowFailException: what a template has made of it is not where a receipt may be written."""
        if self.receipt is not None:
            with fail_without_retry():
                check_receipt(self.receipt)

    @contextmanager
    def receipt_of_wait(self, context: Context) -> Iterator[None]:
        """Write the receipt if the block finishes the wait, however it does: not if it defers or reschedules."""
        try:
            yield
        except AirflowRescheduleException:
            raise
        except Exception:
            self._write_last_read(context)
            raise
        self._write_last_read(context)

    def _write_last_read(self, context: Context) -> None:
        if self._last_read:
            self.write_receipt(context, self._last_read)

    def write_receipt(self, context: Context, transfer: Transfer) -> None:
        """Write the receipt of a sent transfer, whole or not at all. A failure is only logged, as the send stands."""
        if self.receipt is None or transfer.is_draft:
            return
        path = receipt_path(self.receipt, transfer.id)
        try:
            with OutboundTransferHook(self.outbound_transfer_conn_id) as hook:
                if transfer.files is None:  # listings have none
                    transfer = _read_with_files(hook, transfer)
                account = hook.get_account()
                receipt = build_receipt(transfer, _find_memory(account, transfer), account, context["ti"])
            write_whole(path, msgspec.json.format(msgspec.json.encode(receipt), indent=2) + b"\n")
        except Exception as error:
            self.log.warning(
                "The receipt of transfer '%s' could not be written to %s: %s: %.500s. The transfer was sent, and the "
                "task continues. Check the path, its connection and what that may write; then clear this task: it "
                "writes the receipt, and sends nothing again",
                *(transfer.id, path, type(error).__name__, error),
            )
        else:
            self.log.info("Wrote the receipt of transfer '%s' to %s", transfer.id, path)


def _find_memory(account: str, transfer: Transfer) -> Memory | None:
    from outbound_transfer.delivery.place import open_rows
    from outbound_transfer.delivery.row import find_row

    row = find_row(open_rows(), account, transfer.id)
    return row.read()[1] if row else None


def _read_with_files(hook: OutboundTransferHook, transfer: Transfer) -> Transfer:
    """Return the transfer as it is now; as it was given if it cannot be read, or another has its id."""
    with suppress(CallError):
        read = hook.get_transfer(transfer.id)
        return read if identity_of(read) == identity_of(transfer) else transfer
    return transfer
