"""The search for secrets itself, on a busy machine."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from e2e.secrets.scan import files
from e2e.secrets.stack import answer


def test_a_page_that_could_not_be_read_in_time_is_asked_for_again() -> None:
    statuses = iter([503, 503, 200])
    transport = httpx.MockTransport(lambda request: httpx.Response(next(statuses), text="the page"))
    with httpx.Client(transport=transport, base_url="http://airflow") as http:
        place = answer(http, "/outbound-transfer/deliveries")
    assert (place.name.rpartition(" ")[2], place.content) == ("200", b"the page")


def test_a_file_that_is_removed_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone.pid", "kept.log"):
        (tmp_path / name).write_text(name)
    read = Path.read_bytes

    def read_late(path: Path) -> bytes:
        path.with_name("gone.pid").unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    assert [place.content for place in files(tmp_path)] == [b"kept.log"]
