"""Types of the provider that the hook and ``files`` need: the only inner names of contract tests."""

from __future__ import annotations

from outbound_transfer.client import Upload
from outbound_transfer.files.content import ContentWriter
from outbound_transfer.protocol.models import File, Recipient, Transfer, build_new_transfer
from outbound_transfer.protocol.outcomes import TransferOutcome

__all__ = ["ContentWriter", "File", "Recipient", "Transfer", "TransferOutcome", "Upload", "build_new_transfer"]
