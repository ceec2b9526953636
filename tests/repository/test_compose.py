"""docker-compose.yaml and Dockerfile hold together. No container is started: that needs an engine."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.repository import REPOSITORY

COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yaml").read_text())
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

#: `$${…}` is the container's; `${NAME:?message}` and `${NAME:-default}` are Compose's. A bare `${NAME}` may be empty.
VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?P<how>:\?|:-)(?P<rest>[^}]*)\}")


def texts(value: Any) -> list[str]:
    """Every scalar below a value."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    return [text for item in value for text in texts(item)] if isinstance(value, list) else [str(value)]


def variables() -> dict[str, set[str]]:
    """How each of Compose's variables is used."""
    found: dict[str, set[str]] = {}
    for text in texts(COMPOSE):
        for match in VARIABLE.finditer(text):
            if match["name"]:
                found.setdefault(match["name"], set()).add(match["how"])
    return found


def filled_in(text: str) -> str:
    """As Compose hands it on, each variable with a value of its own."""
    return VARIABLE.sub(lambda match: f"value-of-{match['name']}" if match["name"] else "$", text)


def test_every_variable_is_required_or_has_a_default() -> None:
    for text in texts(COMPOSE):
        assert "$" not in VARIABLE.sub("", text), text


def test_the_image_can_send_the_metrics_that_compose_offers() -> None:
    """The slim image has no StatsD client: the scheduler would not start."""
    assert "${STATSD_ON:-False}" in texts(COMPOSE)
    assert "[statsd]==${AIRFLOW_VERSION}" in DOCKERFILE


def test_no_secret_has_a_default() -> None:
    secrets = {name: how for name, how in variables().items() if re.search("PASSWORD|KEY|SECRET", name)}
    assert len(secrets) >= 8
    assert all(how == {":?"} for how in secrets.values())
    for text in texts(COMPOSE):
        for password in re.findall(r"://[^/\s:]*:([^@/\s]+)@", filled_in(text)):
            assert password.startswith("value-of-"), text
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD$|_KEY$|SECRET$|AUTH$", name):
                assert filled_in(value).startswith("value-of-"), name


def test_the_example_names_every_required_variable_and_gives_none_a_value() -> None:
    example = re.findall(r"^([A-Z_]+)=(.*)$", (REPOSITORY / ".env.example").read_text(), re.MULTILINE)
    assert {name for name, _ in example} == {name for name, how in variables().items() if ":?" in how}
    assert {value for _, value in example} == {""}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_says_how_it_is_and_is_limited(name: str) -> None:
    service = SERVICES[name]
    assert ("healthcheck" in service) == (service["restart"] != "no")
    assert service.get("user", "50000") not in ("0", "root", "0:0")
    assert service["image"] == "outbound-transfer-airflow:3.3.2" if "build" in service else True
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    for limit in ("logging", "security_opt"):
        assert service[limit] == COMPOSE["x-service"][limit]


def test_images_are_pinned_and_airflow_is_the_one_that_is_tested() -> None:
    for service in SERVICES.values():
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+(\.\d+)?(-bookworm)?", service["image"])
    assert re.findall(r"^FROM (.+)$", DOCKERFILE, re.MULTILINE) == ["apache/airflow:slim-${AIRFLOW_VERSION}"]
    version = re.search(r"^apache-airflow==(\S+)", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    assert version
    assert re.findall(r"^ARG AIRFLOW_VERSION=(.+)$", DOCKERFILE, re.MULTILINE) == [version[1]]
    assert "USER" not in DOCKERFILE.split()


def test_only_this_machine_reaches_the_published_ports() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_a_triggerer_and_a_worker_may_be_lost_and_the_queue_outlives_a_restart() -> None:
    for name in ("triggerer", "worker"):
        assert SERVICES[name]["deploy"] == {"replicas": 2}
        # Either would keep a service from having more than one container.
        assert not {"container_name", "hostname", "ports"} & SERVICES[name].keys()
    command = SERVICES["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"


def test_every_part_of_airflow_has_one_environment_with_options_that_there_are() -> None:
    from airflow.configuration import conf

    for name in ("api-server", "scheduler", "dag-processor", "triggerer", "worker"):
        own = SERVICES[name]["environment"].items() - {("DUMB_INIT_SETSID", "0")}
        assert SERVICES["init"]["environment"].items() >= own
    for name in (environment := SERVICES["worker"]["environment"]):
        if match := re.fullmatch(r"AIRFLOW__([A-Z_]+?)__([A-Z_]+)", name):
            section, option = match[1].lower(), match[2].lower()
            assert option in conf.configuration_description[section]["options"], name
    # Deliveries are kept in the warehouse.
    conn_id = environment["AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID"]
    assert f"AIRFLOW_CONN_{conn_id.upper()}" in environment


def test_the_sandbox_and_what_takes_metrics_have_profiles() -> None:
    assert {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service} == {
        "sandbox": ["sandbox"],
        "statsd-exporter": ["metrics"],
        "prometheus": ["metrics"],
    }


def test_files_mounted_by_a_service_exist_and_named_volumes_are_declared() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert [source for source in used if source.startswith("./") and not (REPOSITORY / source).is_file()] == []
    assert {volume for volume in used if re.fullmatch(r"[a-z]+", volume)} == set(COMPOSE["volumes"])


def test_volumes_of_airflows_user_have_a_folder_to_take_their_owner_from() -> None:
    targets = {volume.split(":")[1] for name in ("init", "sandbox") for volume in SERVICES[name]["volumes"]}
    made = set(re.findall(r"/opt/airflow/\w+", re.findall(r"^RUN mkdir .*$", DOCKERFILE, re.MULTILINE)[0]))
    assert targets - made == {"/opt/airflow/logs"}  # which the image has


def test_the_image_is_built_from_what_is_here_and_nothing_of_this_machine() -> None:
    sources = {source for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE) for source in line.split()[1:-1]}
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert sources == {line[1:] for line in lines if line.startswith("!")}
    assert all((REPOSITORY / source).exists() for source in sources)
    first, *patterns = [line for line in lines if not line.startswith("!")]
    assert first == "*"
    assert any(fnmatch.fnmatch("plugins/__pycache__", pattern) for pattern in patterns)


def test_the_package_can_be_built_from_what_the_image_has(tmp_path: Path) -> None:
    for line in re.findall(r"^COPY --chown=airflow:0 (.+)$", DOCKERFILE, re.MULTILINE):
        *sources, target = line.split()
        folder = tmp_path / target.removeprefix("/opt/airflow/package").lstrip("/")
        for source in sources:
            path = REPOSITORY / source
            shutil.copytree(path, folder) if path.is_dir() else shutil.copy(path, folder)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tmp_path, check=True)


def test_the_image_asks_for_extras_that_there_are() -> None:
    (extras,) = re.findall(r'"/opt/airflow/package\[(.+)\]"', DOCKERFILE)
    project = (REPOSITORY / "pyproject.toml").read_text()
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"pyproject.toml has no extra {extra}"
