"""The command `outbound-transfer-sandbox`."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from . import explain_missing_packages

if problem := explain_missing_packages():
    sys.exit(f"outbound-transfer-sandbox: {problem}")
else:
    from .domain import defaults
    from .server.app import create_app
    from .server.uvicorn import Server, base_url, listen
    from .service.sandbox import SandboxService
    from .store.database import DataInUse


#: As in `make sandbox`: a sandbox that is started again has its earlier keys and transfers.
DEFAULT_DATA = Path(".sandbox")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sandbox until SIGTERM or Ctrl-C. Returns 0 after a clean stop, 2 if it cannot start."""
    options = _parser().parse_args(arguments)
    # A signal before the server runs must remove the temporary directory, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with suppress(KeyboardInterrupt), TemporaryDirectory(prefix="outbound-transfer-sandbox-") as temporary:
            _run(options, Path(temporary) if _is_throwaway(options) else options.data or DEFAULT_DATA)
    except (OSError, DataInUse) as error:
        sys.stderr.write(f"outbound-transfer-sandbox: {error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="outbound-transfer-sandbox", description="A local stand-in for the Outbound Transfer Service."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=8085, help="port to listen on; 0 selects a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help=f"directory for all data, keys included (default: {DEFAULT_DATA}; with --port 0, removed at exit)",
    )
    parser.add_argument(
        "--transfer-key", type=_key, metavar="K", help="transfer API key to accept (default: generated)"
    )
    parser.add_argument("--event-key", type=_key, metavar="K", help="event API key to accept (default: generated)")
    parser.add_argument(
        "--password",
        type=_password,
        metavar="P",
        default=os.environ.get("OUTBOUND_TRANSFER_SANDBOX_PASSWORD") or None,
        help="password of the web application's users (default: $OUTBOUND_TRANSFER_SANDBOX_PASSWORD, or generated)",
    )
    parser.add_argument(
        "--trusted-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name under which browsers may open the web application, besides localhost and IP addresses",
    )
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="F",
        help="file to write the address and the keys to, as JSON, when the sandbox accepts connections",
    )
    return parser


def _key(text: str) -> str:
    if not (text.isascii() and text.isprintable() and text.split() == [text]):
        raise argparse.ArgumentTypeError("a key must be printable ASCII without spaces")
    return text


def _password(text: str) -> str:
    if not 1 <= len(text) <= 1000:
        raise argparse.ArgumentTypeError("a password must have 1 to 1000 characters")
    return text


def _run(options: argparse.Namespace, data: Path) -> None:
    with _listen(options.host, options.port) as listener, closing(_open_sandbox(options, data)) as sandbox:
        transfer_key, event_key = sandbox.ensure_keys(options.transfer_key, options.event_key)
        password = sandbox.ensure_users(options.password)
        ready = {"base_url": base_url(listener), "transfer_api_key": transfer_key, "event_api_key": event_key}

        def on_ready() -> None:
            _print_welcome(ready, password, options, data)
            if options.ready_file:
                _write_private(options.ready_file, json.dumps(ready))

        Server(create_app(sandbox, options.trusted_host), on_ready).run(sockets=[listener])


def _is_throwaway(options: argparse.Namespace) -> bool:
    """Return whether the data is temporary: with a free port, and without a directory."""
    return options.data is None and options.port == 0


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot listen on {host}:{port}: {error}") from None


def _open_sandbox(options: argparse.Namespace, data: Path) -> SandboxService:
    return SandboxService(data, durable=not _is_throwaway(options))


def _print_welcome(ready: dict[str, str], password: str | None, options: argparse.Namespace, data: Path) -> None:
    users = f"{defaults.FIRST_USER} or {defaults.FIRST_ADMINISTRATOR}"
    sys.stdout.write(
        f"Outbound Transfer sandbox at {ready['base_url']}\n"
        f"  transfer API key  {ready['transfer_api_key']}\n"
        f"  event API key     {ready['event_api_key']}\n"
        f"  web application   sign in as {users}\n"
        f"  password          {password or 'unchanged since an earlier run; --password sets another'}\n"
        f"  mailbox           {ready['base_url']}/mailbox shows the messages to recipients\n"
        f"  data              {f'{data} (removed at exit)' if _is_throwaway(options) else f'{data.resolve()} (kept)'}\n"
        "\nTo connect an Airflow on this machine, use one of:\n\n"
        f"{_connection_commands(ready)}\n"
    )
    sys.stdout.flush()
    if not _is_loopback(options.host):
        sys.stderr.write(
            f"Warning: other machines can reach the sandbox at {options.host}. It is meant for tests on this machine.\n"
        )


def _connection_commands(ready: dict[str, str]) -> str:
    """Return two commands that give an Airflow its connection to the sandbox, for a POSIX shell."""
    url = urlsplit(ready["base_url"])
    address = {"host": f"{url.scheme}://{url.hostname}", "port": url.port}
    if ":" in (url.hostname or ""):
        address["host"] = f"{url.scheme}://[{url.hostname}]"
    extra = {"event_api_key": ready["event_api_key"]}
    password = ready["transfer_api_key"]
    connection = {"conn_type": "outbound_transfer", **address, "password": password, "extra": extra}
    return (
        "airflow connections add outbound_transfer_default --conn-type outbound_transfer \\\n"
        f"    --conn-host {address['host']} --conn-port {address['port']} \\\n"
        f"    --conn-password {shlex.quote(password)} --conn-extra {shlex.quote(json.dumps(extra))}\n\n"
        f"export AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT={shlex.quote(json.dumps(connection))}\n"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only, because it contains keys."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(text)
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
