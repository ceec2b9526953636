"""Resources as the API returns them (service-api.md, R11 to R14 and R46)."""

from __future__ import annotations

from typing import Any

import msgspec

from outbound_transfer_sandbox.domain.clock import iso, iso_or_none
from outbound_transfer_sandbox.domain.models import Event, File, Recipient, Transfer


def transfer(value: Transfer) -> dict[str, Any]:
    """Return a transfer as `GET /v1/transfers/{transfer_id}` does."""
    return {**transfer_summary(value), "files": [file(f) for f in value.files]}


def transfer_summary(value: Transfer) -> dict[str, Any]:
    """Return a transfer as the list does: without files."""
    return {
        "id": value.id,
        "status": value.status,
        "subject": value.subject,
        "message": value.message,
        "recipients": [recipient(r) for r in value.recipients],
        "expires_at": iso(value.expires_at),
        "sent_at": iso_or_none(value.sent_at),
    }


def recipient(value: Recipient) -> dict[str, Any]:
    return {"email": value.email, "name": value.name, "picked_up_at": iso_or_none(value.picked_up_at)}


def file(value: File) -> dict[str, Any]:
    return {"id": value.id, "name": value.name, "size": value.size}


def events(values: list[Event]) -> bytes:
    """Return events as NDJSON, one per line."""
    lines = [
        {"event_id": e.event_id, "type": e.type, "timestamp": iso(e.timestamp), "data": msgspec.Raw(e.data.encode())}
        for e in values
    ]
    return msgspec.json.Encoder().encode_lines(lines)
