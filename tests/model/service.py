"""The service's rules in memory, for several accounts and users (service-api.md)."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from outbound_transfer.client.transport import Request, Response

_CONTENT = {"content-type": "application/json"}


@dataclass
class Stored:
    """A transfer as the service has it; ``files``: id and content by name."""

    id: str
    account: str
    user: str
    subject: str
    recipients: list[dict[str, Any]]
    status: str = "draft"
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    @property
    def content(self) -> dict[str, str]:
        """SHA-256 of each file by name."""
        return {name: hashlib.sha256(data).hexdigest() for name, (_, data) in self.files.items()}

    def shown(self) -> dict[str, Any]:
        files = [{"id": id_, "name": name, "size": len(data)} for name, (id_, data) in self.files.items()]
        return {**self.summary(), "files": files}

    def summary(self) -> dict[str, Any]:
        shown = {"id": self.id, "status": self.status, "subject": self.subject, "recipients": self.recipients}
        return shown if self.status == "draft" else {**shown, "sent_at": "2026-01-01T00:00:00Z"}


@dataclass
class Service:
    """:ivar busy: sends that it refuses with 409 ``transfer_limit_reached``. :ivar billed: what was sent, in order."""

    transfers: dict[tuple[str, str], Stored] = field(default_factory=dict)
    billed: list[Stored] = field(default_factory=list)
    busy: int = 0
    numbers: Counter[str] = field(default_factory=Counter)

    def _next(self, kind: str, account: str = "") -> str:
        self.numbers[kind + account] += 1  # two accounts may use one id
        return f"{kind}{self.numbers[kind + account]}"

    def answer(self, account: str, user: str, request: Request, content: bytes | None) -> Response:
        """Return the response to a request."""
        status, body = self._answer(account, user, request, content)
        if status >= 400:
            body = {"error": body, "message": "no"}
        return Response(status, _CONTENT, b"" if status == 204 else msgspec.json.encode(body))

    def _answer(self, account: str, user: str, request: Request, content: bytes | None) -> tuple[int, Any]:
        method, parts = request.method, request.path.split("/")[3:]
        if not parts:
            new = msgspec.json.decode(content or b"")
            made = Stored(self._next("t", account), account, user, new["subject"], new["recipients"])
            self.transfers[account, made.id] = made
            return 201, made.shown()
        found = self.transfers.get((account, parts[0]))
        if found is None or found.user != user:
            return 404, "not_found"
        if method == "GET":
            return 200, found.shown()
        if found.status != "draft":
            return 409, "invalid_state"
        if method == "DELETE" and len(parts) == 1:
            del self.transfers[account, found.id]
            return 204, None
        if method == "DELETE":
            names = [name for name, (id_, _) in found.files.items() if id_ == parts[2]]
            return (204, found.files.pop(names[0]) and None) if names else (404, "not_found")
        if parts[1] == "files":
            return self._attach(found, request, content or b"")
        if self.busy:
            self.busy -= 1
            return 409, "transfer_limit_reached"
        if not found.files:
            return 409, "invalid_state"
        self.send(found)
        return 200, found.shown()

    def _attach(self, found: Stored, request: Request, content: bytes) -> tuple[int, Any]:
        assert request.upload is not None
        assert len(content) == request.upload.size, "the service would store a truncated file"
        name = request.upload.name
        status = 200 if name in found.files else 201
        if status == 201:
            found.files[name] = self._next("f", found.account), content
        id_, data = found.files[name]
        return status, {"id": id_, "name": name, "size": len(data)}

    def send(self, found: Stored) -> None:
        """Bill a draft."""
        found.status = "pending"
        self.billed.append(found)
