"""Types of the provider that the hook and ``files`` need: the only inner names of contract tests."""

from __future__ import annotations

from outbound_transfer.client.models import File, Recipient, Transfer, TransferOutcome, Upload
from outbound_transfer.client.new_transfer import build_new_transfer
from outbound_transfer.files.content import ContentWriter

__all__ = ["ContentWriter", "File", "Recipient", "Transfer", "TransferOutcome", "Upload", "build_new_transfer"]
