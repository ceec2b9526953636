"""Deliveries that break promises, to test that the tests notice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from outbound_transfer_sandbox.testing import Sandbox


class ForgetfulDelivery(SimpleNamespace):
    """Makes a draft and sends it in each try, as it remembers nothing.

    :param contents: what it sends of each file; the file's own content if omitted.
    """

    def __init__(self, sandbox: Sandbox, files: Sequence[Path], delivery: dict[str, Any], content: bytes | None = None):
        super().__init__(hook=lambda **_: None)
        self.sandbox, self.files, self.delivery, self.content = sandbox, files, delivery, content

    def execute(self, context: Any) -> dict[str, Any]:
        key = {"Authorization": f"Bearer {self.sandbox.transfer_api_key}"}
        people = [{"email": email} for email in self.delivery["recipients"]]
        with httpx.Client(base_url=f"{self.sandbox.base_url}/v1", headers=key, trust_env=False) as client:

            def post(path: str, **content: Any) -> dict[str, Any]:
                made: dict[str, Any] = client.post(path, **content).raise_for_status().json()
                return made

            draft = post("/transfers", json={"subject": self.delivery["subject"], "recipients": people})["id"]
            for path in self.files:
                name = {"Content-Disposition": f'attachment; filename="{path.name}"'}
                post(f"/transfers/{draft}/files", content=self.content or path.read_bytes(), headers=name)
            return post(f"/transfers/{draft}/send")
