"""Files of a transfer (service.md, POST /v1/transfers/{transfer_id}/files and the calls beside it)."""

from __future__ import annotations

import mimetypes
import re

from msgspec import Struct

from outbound_transfer_sandbox import limits
from outbound_transfer_sandbox.errors import ApiError, not_found
from outbound_transfer_sandbox.headers import filename
from outbound_transfer_sandbox.models import Caller, File, Transfer
from outbound_transfer_sandbox.store.blobs import Upload

from .context import Context, new_id
from .transfers import TransferService


class Admission(Struct, frozen=True):
    """An upload that may begin: `size` bytes under `name`. `existing` is the file that already has the name."""

    name: str
    size: int
    existing: File | None


class FileService:
    def __init__(self, context: Context, transfers: TransferService) -> None:
        self._context = context
        self._store = context.transfers
        self._transfers = transfers

    def admit(self, caller: Caller, transfer_id: str, length: str | None, disposition: str | None) -> Admission:
        """Decides on an upload by its headers alone, before any byte of it is read.

        Raises 404, 409 invalid_state, 411 length_required, 400 invalid_request, 413 file_too_large, 503
        service_unavailable when the quota is used up, in this order.
        """
        transfer = self._transfers.draft(caller, transfer_id, with_files=False)
        size = content_length(length)
        name = filename(disposition)
        self._check_size(size)
        existing = self._store.file_named(transfer.pk, name)
        if existing is None:
            self._context.space.check_file(size, name)
        return Admission(name, size, existing)

    def _check_size(self, size: int) -> None:
        rounded, limit = limits.megabytes(size), self._context.account.per_file_limit_mb
        if rounded > limit:
            raise ApiError(413, "file_too_large", f"The file has {rounded} MB; the limit is {limit} MB.")

    def attach(self, caller: Caller, transfer_id: str, admission: Admission, upload: Upload) -> tuple[File, bool]:
        """Makes a complete upload a file of the draft; False with the file that was there first.

        Raises 404 or 409 invalid_state when the draft has gone or was sent during the upload.
        """
        transfer = self._transfers.draft(caller, transfer_id, with_files=False)
        existing = self._store.file_named(transfer.pk, admission.name)
        if existing:
            return existing, False
        content_type = mimetypes.guess_type(admission.name)[0] or "application/octet-stream"
        file = File(new_id("fi"), admission.name, admission.size, content_type)
        # Bytes first: a record never stands without them, and bytes without a record are swept at start.
        self._context.blobs.keep(upload, file.id)
        self._store.add_file(transfer.pk, file)
        return file, True

    def of(self, caller: Caller, transfer_id: str) -> list[File]:
        return self._transfers.retrieve(caller, transfer_id).files

    def retrieve(self, caller: Caller, transfer_id: str, file_id: str) -> File:
        return self._file(self._transfers.retrieve(caller, transfer_id, with_files=False), file_id)

    def remove(self, caller: Caller, transfer_id: str, file_id: str) -> None:
        """Raises 404; 409 invalid_state when the transfer was sent."""
        file = self._file(self._transfers.draft(caller, transfer_id, with_files=False), file_id)
        self._store.remove_file(file.id)
        self._context.blobs.remove([file.id])

    def _file(self, transfer: Transfer, file_id: str) -> File:
        file = self._store.file(transfer.pk, file_id)
        if file is None:
            raise not_found("file")
        return file


def content_length(value: str | None) -> int:
    """Bytes declared. Raises 411 length_required when the header is absent or unusable."""
    if value is None or not re.fullmatch("[0-9]{1,18}", value):
        raise ApiError(411, "length_required", "Content-Length is missing or unusable.")
    return int(value)
