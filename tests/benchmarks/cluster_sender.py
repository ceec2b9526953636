"""A process that sends one-file transfers, one after the other, until it is terminated, by the hook that tasks use."""

from __future__ import annotations

from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.protocol import endpoints
from outbound_transfer.protocol.messages import Upload
from outbound_transfer.protocol.models import build_new_transfer


def main() -> None:
    new = build_new_transfer(subject="Report", recipients=["ann@example.com"])
    with OutboundTransferHook() as hook:
        while True:
            draft = hook.perform(endpoints.create_transfer(new)).id
            hook.perform(endpoints.attach_file(draft, Upload("report.csv", 1, lambda: iter([b"a"]))))
            hook.perform(endpoints.send_transfer(draft))


if __name__ == "__main__":
    main()
