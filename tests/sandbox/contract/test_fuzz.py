"""schemathesis sends unexpected requests to every endpoint, from an OpenAPI document of docs/service-api.md.

A few examples of each kind with one seed here; `make test-fuzz SECONDS=600` goes on with new ones for that long.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SECONDS, SEED = os.environ.get("FUZZ_SECONDS"), os.environ.get("FUZZ_SEED")

# The answers without which a run has not been to the place.
REACHED = {
    ("POST", "/v1/transfers"): {201, 400, 401},
    ("GET", "/v1/transfers"): {200, 400, 401},
    ("GET", "/v1/transfers/{}"): {200, 401, 404},
    ("DELETE", "/v1/transfers/{}"): {401, 404},
    ("POST", "/v1/transfers/{}/files"): {201, 401, 404},
    ("GET", "/v1/transfers/{}/files"): {200, 401, 404},
    ("GET", "/v1/transfers/{}/files/{}"): {401, 404},
    ("DELETE", "/v1/transfers/{}/files/{}"): {401, 404},
    ("POST", "/v1/transfers/{}/send"): {401, 404, 409},
    ("GET", "/v1/events"): {200, 400, 401},
}


def test_nothing_breaks_and_every_answer_has_its_documented_form(control: Any, unlimited: None, tmp_path: Path) -> None:
    keys = {
        "OUTBOUND_TRANSFER_API_KEY": control.transfer_api_key,
        "OUTBOUND_TRANSFER_EVENT_API_KEY": control.event_api_key,
    }
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("st")), "--config-file", str(HERE / "schemathesis.toml")),
            *("run", str(HERE / "openapi.yaml"), "--url", control.base_url, "--no-color"),
            *("--generation-database", "none"),
            *(("--max-time", SECONDS) if SECONDS else ("--max-examples", "8")),
            *(("--seed", SEED or "6") if SEED or not SECONDS else ()),
        ],
        cwd=tmp_path,
        env={**os.environ, **keys},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answered = defaultdict(set)
    for row in control.requests():
        path = re.sub(r"^(/v1/transfers/)[^/]+", r"\1{}", row["path"])
        answered[row["method"], re.sub(r"(/files/).+", r"\1{}", path)].add(row["status"])
    assert {place: statuses & answered[place] for place, statuses in REACHED.items()} == REACHED
    assert max(max(statuses) for statuses in answered.values()) < 500
