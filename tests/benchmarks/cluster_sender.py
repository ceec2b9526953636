"""A process that sends one-file transfers, one after the other, until it is terminated: ``… URL KEY``."""

from __future__ import annotations

import sys

from outbound_transfer.client import Client, Settings
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.messages import Upload
from outbound_transfer.protocol.models import build_new_transfer


def main(url: str, key: str) -> None:
    new = build_new_transfer(subject="Report", recipients=["ann@example.com"])
    with Client(Settings(url, key)) as client:
        while True:
            draft = client.perform(endpoints.create_transfer(new)).id
            client.perform(endpoints.attach_file(draft, Upload("report.csv", 1, lambda: iter([b"a"]))))
            client.perform(endpoints.send_transfer(draft))


if __name__ == "__main__":
    main(*sys.argv[1:])
