"""The types that the hook's methods take."""

from outbound_transfer.protocol.messages import Upload
from outbound_transfer.protocol.models import build_new_transfer

__all__ = ["Upload", "build_new_transfer"]
