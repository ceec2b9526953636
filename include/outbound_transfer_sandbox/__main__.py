"""The command `outbound-transfer-sandbox`."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from . import unspecified
from .app import create_app
from .limits import MEGABYTE
from .server import Server, base_url, listen
from .service.sandbox import Sandbox
from .store.database import DataInUse


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sandbox until SIGTERM or Ctrl-C. 0 after a clean stop, 2 when it cannot start."""
    options = _parser().parse_args(arguments)
    # Before the server runs, a stop must still remove the temporary directory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with suppress(KeyboardInterrupt), TemporaryDirectory(prefix="outbound-transfer-sandbox-") as temporary:
            _run(options, options.data or Path(temporary))
    except (OSError, DataInUse) as error:
        sys.stderr.write(f"outbound-transfer-sandbox: {error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="outbound-transfer-sandbox", description="A local stand-in of the Outbound Transfer Service."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8085, help="port; 0 takes a free one (default: %(default)s)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where state is kept (default: until exit only)")
    parser.add_argument("--transfer-key", type=_key, metavar="K", help="a valid transfer API key (default: generated)")
    parser.add_argument("--event-key", type=_key, metavar="K", help="the valid event API key (default: generated)")
    parser.add_argument(
        "--password",
        type=_password,
        metavar="P",
        default=os.environ.get("OUTBOUND_TRANSFER_SANDBOX_PASSWORD") or None,
        help="of the web application's users (default: $OUTBOUND_TRANSFER_SANDBOX_PASSWORD, or generated)",
    )
    parser.add_argument(
        "--trusted-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which browsers may use the web application, besides localhost and addresses",
    )
    parser.add_argument(
        "--quota-mb",
        type=_positive,
        metavar="N",
        help="disk space for all that is kept: files, records, logs (default: unlimited)",
    )
    parser.add_argument("--ready-file", type=Path, metavar="F", help="where to write address and keys when ready")
    return parser


def _key(text: str) -> str:
    if not (text.isascii() and text.isprintable() and text.split() == [text]):
        raise argparse.ArgumentTypeError("a key is printable ASCII without spaces")
    return text


def _password(text: str) -> str:
    if not 1 <= len(text) <= 1000:
        raise argparse.ArgumentTypeError("a password has 1 to 1000 characters")
    return text


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:12]) > 0):
        raise argparse.ArgumentTypeError("a positive whole number is needed")
    return int(text[:12])


def _run(options: argparse.Namespace, data: Path) -> None:
    with _bound(options.host, options.port) as listener, closing(_sandbox(options, data)) as sandbox:
        transfer_key, event_key = sandbox.open_keys(options.transfer_key, options.event_key)
        password = sandbox.open_people(options.password)
        ready = {"base_url": base_url(listener), "transfer_api_key": transfer_key, "event_api_key": event_key}

        def on_ready() -> None:
            _announce(ready, password, options, data)
            if options.ready_file:
                _write_private(options.ready_file, json.dumps(ready))

        Server(create_app(sandbox, options.trusted_host), on_ready).run(sockets=[listener])


def _bound(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot listen on {host}:{port}: {error}") from None


def _sandbox(options: argparse.Namespace, data: Path) -> Sandbox:
    return Sandbox(data, options.quota_mb and options.quota_mb * MEGABYTE, durable=bool(options.data))


def _announce(ready: dict[str, str], password: str | None, options: argparse.Namespace, data: Path) -> None:
    users = f"{unspecified.FIRST_USER} or {unspecified.FIRST_ADMINISTRATOR}"
    sys.stdout.write(
        f"Outbound Transfer sandbox at {ready['base_url']}\n"
        f"  transfer API key  {ready['transfer_api_key']}\n"
        f"  event API key     {ready['event_api_key']}\n"
        f"  web application   sign in as {users}\n"
        f"  password          {password or 'as it was set before; --password sets another'}\n"
        f"  mailbox           {ready['base_url']}/mailbox shows what recipients would get\n"
        f"  data              {data}{'' if options.data else ' (removed at exit)'}\n"
    )
    sys.stdout.flush()
    if not _is_loopback(options.host):
        sys.stderr.write(f"Warning: {options.host} can be reached from other machines; this is a sandbox.\n")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _write_private(path: Path, text: str) -> None:
    """Atomically, and readable by its owner only: it holds keys."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(text)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
