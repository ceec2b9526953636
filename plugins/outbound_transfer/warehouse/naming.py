"""What tables are called, apart from their definitions: operators have it as a default without importing SQLAlchemy."""

from __future__ import annotations

from typing import Final

#: Start of the tables' names.
DEFAULT_PREFIX: Final = "outbound_transfer_"
