"""Files of a transfer (service-api.md, R30 to R34)."""

from __future__ import annotations

import mimetypes
import re

from msgspec import Struct

from outbound_transfer_sandbox.domain.content_disposition import filename
from outbound_transfer_sandbox.domain.errors import ApiError, not_found
from outbound_transfer_sandbox.domain.models import Caller, File, Transfer
from outbound_transfer_sandbox.domain.sizes import megabytes
from outbound_transfer_sandbox.store.blobs import Upload

from .context import Context, new_id
from .transfers import TransferService


class AcceptedUpload(Struct, frozen=True):
    """An accepted upload of `size` bytes under `name`. `existing` is the file that already has this name."""

    name: str
    size: int
    existing: File | None


class FileService:
    """Attaches files to drafts, and lists and removes them."""

    def __init__(self, context: Context, transfers: TransferService) -> None:
        self._context = context
        self._store = context.transfers
        self._transfers = transfers

    def accept(self, caller: Caller, transfer_id: str, length: str | None, disposition: str | None) -> AcceptedUpload:
        """Accept or refuse an upload by its headers, before its body is read.

        Raises 404, 409 invalid_state, 411 length_required, 400 invalid_request, 413 file_too_large, in
        this order.
        """
        transfer = self._transfers.require_draft(caller, transfer_id, with_files=False)
        size = content_length(length)
        name = filename(disposition)
        self._check_size(size)
        return AcceptedUpload(name, size, self._store.file_named(transfer.pk, name))

    def _check_size(self, size: int) -> None:
        rounded, limit = megabytes(size), self._context.account.per_file_limit_mb
        if rounded > limit:
            raise ApiError(413, "file_too_large", f"The file has {rounded} MB; the limit is {limit} MB.")

    def attach(self, caller: Caller, transfer_id: str, accepted: AcceptedUpload, upload: Upload) -> tuple[File, bool]:
        """Attach a complete upload. Returns the file and whether it is new; an existing file of the name stays.

        Raises 404 or 409 invalid_state if the draft was discarded or sent during the upload.
        """
        transfer = self._transfers.require_draft(caller, transfer_id, with_files=False)
        existing = self._store.file_named(transfer.pk, accepted.name)
        if existing:
            return existing, False
        content_type = mimetypes.guess_type(accepted.name)[0] or "application/octet-stream"
        file = File(new_id("fi"), accepted.name, accepted.size, content_type)
        # Bytes first: every record has its bytes, and bytes without a record are removed at the next start.
        self._context.blobs.commit(upload, file.id)
        self._store.add_file(transfer.pk, file)
        return file, True

    def list_files(self, caller: Caller, transfer_id: str) -> list[File]:
        return self._transfers.retrieve(caller, transfer_id).files

    def retrieve(self, caller: Caller, transfer_id: str, file_id: str) -> File:
        return self._file(self._transfers.retrieve(caller, transfer_id, with_files=False), file_id)

    def remove(self, caller: Caller, transfer_id: str, file_id: str) -> None:
        """Remove a file from a draft. Raises 404, or 409 invalid_state if the transfer was sent."""
        file = self._file(self._transfers.require_draft(caller, transfer_id, with_files=False), file_id)
        self._store.remove_file(file.id)
        self._context.blobs.remove([file.id])

    def _file(self, transfer: Transfer, file_id: str) -> File:
        file = self._store.file(transfer.pk, file_id)
        if file is None:
            raise not_found("file")
        return file


def content_length(value: str | None) -> int:
    """Return the declared number of bytes. Raises 411 length_required if the header is missing or invalid."""
    if value is None or not re.fullmatch("[0-9]{1,18}", value):
        raise ApiError(411, "length_required", "Content-Length is missing or unusable.")
    return int(value)
