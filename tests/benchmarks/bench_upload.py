"""Upload 1 GiB with the client, and with curl, in turn: speeds, and memory."""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from outbound_transfer_sandbox.testing import Sandbox, running_sandbox

MIB = 1024 * 1024
ROUNDS = 5


def main() -> int:
    if not shutil.which("curl"):
        print("curl is needed for the comparison", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--upload", nargs=4, metavar=("URL", "KEY", "TRANSFER", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.upload:
        print(json.dumps(upload(*arguments.upload)))
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-upload-") as folder:
        compare(Path(folder), arguments.mib)
    return 0


def compare(folder: Path, mib: int) -> None:
    """Run both in turn and print the medians."""
    file = folder / "payload.bin"
    with file.open("wb") as out:
        for _ in range(mib):
            out.write(bytes(MIB))
    ours, curls, grown = [], [], []
    with uploading_sandbox() as sandbox:
        for number in range(1, ROUNDS + 1):
            run = run_ours(sandbox, new_draft(sandbox), file)
            ours.append(mib / run["seconds"])
            grown.append(run["grown_mib"])
            curls.append(mib / run_curl(sandbox, new_draft(sandbox), file))
            print(f"round {number}: ours {ours[-1]:,.0f}, curl {curls[-1]:,.0f} MiB/s, memory +{grown[-1]:.1f} MiB")
    ratio = statistics.median(one / other for one, other in zip(ours, curls, strict=True))
    print(
        f"\n{mib} MiB, median of {ROUNDS}: ours {statistics.median(ours):,.0f} MiB/s, "
        f"curl {statistics.median(curls):,.0f} MiB/s, ours/curl {ratio:.2f} (claim: at least 0.8); "
        f"memory grown by at most {max(grown):.1f} MiB (claim: under 32)"
    )


@contextmanager
def uploading_sandbox() -> Iterator[Sandbox]:
    """A sandbox that takes large files, and many calls."""
    with running_sandbox() as sandbox:
        sandbox.patch_account(per_file_limit_mb=1_000_000, requests_per_window=1_000_000)
        yield sandbox


def new_draft(sandbox: Sandbox) -> str:
    answer = httpx.post(
        f"{sandbox.base_url}/v1/transfers",
        headers={"Authorization": f"Bearer {sandbox.transfer_api_key}"},
        json={"subject": "Benchmark", "recipients": [{"email": "ann@example.com"}]},
    )
    return str(answer.raise_for_status().json()["id"])


def run_ours(sandbox: Sandbox, transfer_id: str, file: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--upload", sandbox.base_url, sandbox.transfer_api_key]
    done = subprocess.run([*command, transfer_id, str(file)], check=True, capture_output=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def upload(url: str, key: str, transfer_id: str, file: str) -> dict[str, float]:
    """One upload in a process of its own: seconds, and MiB that its peak memory grew by."""
    from outbound_transfer.client.client import Client
    from outbound_transfer.client.models import Upload
    from outbound_transfer.client.settings import Settings
    from outbound_transfer.files.sources import local_source

    source = local_source(file, "")
    with Client(Settings(url, key)) as client:
        client.get_transfer(transfer_id)  # connect, import and warm up outside the measured part
        before, started = peak_mib(), time.perf_counter()
        attached = client.attach_file(transfer_id, Upload(source.name, source.size, source.chunks))
        seconds = time.perf_counter() - started
    assert attached.file.size == source.size
    return {"seconds": seconds, "grown_mib": peak_mib() - before}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_curl(sandbox: Sandbox, transfer_id: str, file: Path) -> float:
    """Seconds, by curl's own account."""
    done = subprocess.run(
        [
            *("curl", "--silent", "--show-error", "--fail", "--output", "/dev/null", "--write-out", "%{time_total}"),
            *("--request", "POST", "--upload-file", str(file), "--header", "Expect:"),
            *("--header", f"Authorization: Bearer {sandbox.transfer_api_key}"),
            *("--header", 'Content-Disposition: attachment; filename="payload.bin"'),
            f"{sandbox.base_url}/v1/transfers/{transfer_id}/files",
        ],
        check=True,
        capture_output=True,
    )
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
