"""An S3 server of its own, and Airflow's connection to it."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx

ACCESS_KEY, SECRET_KEY = "an-access-key", "a-secret-key"


@contextlib.contextmanager
def started(*command: str) -> Iterator[str]:
    """What a server says first; in a process of its own, so that its memory is not taken for ours."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            said = server.stdout.readline().strip()
            assert said, "the server did not start"
            yield said
        finally:
            server.stdin.close()


def running_s3() -> contextlib.AbstractContextManager[str]:
    return started(sys.executable, __file__)


@contextlib.contextmanager
def refusing_keys(endpoint: str) -> Iterator[None]:
    """The server knows no key meanwhile, and refuses every request."""
    reset = f"{endpoint}/moto-api/reset-auth"
    httpx.post(reset, content="0").raise_for_status()
    try:
        yield
    finally:
        httpx.post(reset, content="inf").raise_for_status()


def connection_json(endpoint: str, **extra: object) -> str:
    extra = {"endpoint_url": endpoint, "region_name": "us-east-1", **extra}
    return json.dumps({"conn_type": "aws", "login": ACCESS_KEY, "password": SECRET_KEY, "extra": extra})


class Bucket:
    def __init__(self, endpoint: str, name: str) -> None:
        import boto3

        self.name = name
        self.uri = f"s3://aws_default@{name}"
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
        self._s3: Any = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        self._s3.create_bucket(Bucket=name)

    def put(self, key: str, content: bytes) -> str:
        self._s3.put_object(Bucket=self.name, Key=key, Body=content)
        return f"{self.uri}/{key}"

    def delete(self, key: str) -> None:
        self._s3.delete_object(Bucket=self.name, Key=key)

    def close(self) -> None:
        self._s3.close()


def _serve() -> None:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()  # until the parent ends, however it ends
    server.stop()


if __name__ == "__main__":
    _serve()
