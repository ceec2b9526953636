"""docker-compose.yaml as `make test-cluster` carries it out: what is read of it, and what it becomes natively."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.cluster import FILES, variables
from e2e.cluster.compose import ComposeError, Service, filled_in, read
from e2e.cluster.native import Container, containers, lay_out

TEXTS = [file.read_text() for file in FILES]
FOLDER = Path("/cluster")


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    return read(TEXTS, variables(Path("/outbox")), ["sandbox"])


@pytest.fixture(scope="module")
def groups(services: dict[str, Service]) -> dict[str, list[Container]]:
    return containers(services, FOLDER)


def compose(**service: Any) -> str:
    return json.dumps({"services": {"one": {"image": "redis:1.2"} | service}})


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("${NAME:?say it}", "value"),
        ("redis://:${NAME:?say it}@redis", "redis://:value@redis"),
        ("${OTHER:-4}", "4"),
        ("${NAME:-4}", "value"),
        ("${EMPTY:-4}", "4"),
        ("${OTHER}", ""),
        ("celery@$${HOSTNAME}", "celery@${HOSTNAME}"),
        ("$${NAME:?}", "${NAME:?}"),
        ("no variable", "no variable"),
    ],
)
def test_variables_are_filled_in(text: str, becomes: str) -> None:
    assert filled_in({"a": [text, 1]}, {"NAME": "value", "EMPTY": ""}) == {"a": [becomes, 1]}


@pytest.mark.parametrize("variables", [{}, {"NAME": ""}])
def test_a_required_variable_must_have_a_value(variables: dict[str, str]) -> None:
    with pytest.raises(ComposeError, match="NAME is missing: set it"):
        read([compose(command="${NAME:?set it}")], variables)


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(ComposeError, match="one: cap_add, network_mode is not known"):
        read([compose(network_mode="host", cap_add=["ALL"])], {})


def test_a_second_file_overrides_by_key() -> None:
    first = compose(environment={"A": "1", "B": "1"}, command="a", deploy={"replicas": 2})
    second = json.dumps({"services": {"one": {"environment": {"B": "2"}, "command": ["b"]}}})
    (service,) = read([first, second], {}).values()
    assert (service.environment, service.command, service.replicas) == ({"A": "1", "B": "2"}, ("b",), 2)


@pytest.mark.parametrize(
    ("test", "line"), [(["CMD", "a", "b c"], "a 'b c'"), (["CMD-SHELL", "a | grep --quiet b"], "a | grep --quiet b")]
)
def test_a_health_check_is_a_line_for_the_shell(test: list[str], line: str) -> None:
    (service,) = read([compose(healthcheck={"test": test})], {}).values()
    assert service.shell_check == line


def test_only_the_profiles_services_are_there(services: dict[str, Service]) -> None:
    without = read(TEXTS, variables(Path("/outbox")))
    assert services.keys() - without.keys() == {"sandbox"}


def test_a_service_comes_after_what_it_depends_on(services: dict[str, Service]) -> None:
    order = list(services)
    for name, service in services.items():
        assert all(order.index(other) < order.index(name) for other in service.depends_on)
    assert services["worker"].depends_on == {
        "init": "service_completed_successfully",
        "redis": "service_healthy",
        "api-server": "service_healthy",
    }


def test_the_short_times_are_all_that_differs(services: dict[str, Service]) -> None:
    values = variables(Path("/outbox"))
    plain, short = (read(texts, values, ["sandbox"]) for texts in (TEXTS[:1], TEXTS))
    for name, service in short.items():
        changed = {key for key, value in service.environment.items() if plain[name].environment.get(key) != value}
        assert not any(key.startswith(("AIRFLOW_CONN", "AIRFLOW__DATABASE")) for key in changed)
        assert (service.command, service.check, service.replicas) == (
            plain[name].command,
            plain[name].check,
            plain[name].replicas,
        )


def test_each_container_has_an_address_and_a_name_of_its_own(groups: dict[str, list[Container]]) -> None:
    every = [container for group in groups.values() for container in group]
    assert len({container.address for container in every}) == len({container.name for container in every}) == len(every)
    assert [container.name for container in groups["triggerer"]] == ["triggerer-1", "triggerer-2"]


def test_names_of_services_become_addresses(groups: dict[str, list[Container]]) -> None:
    worker = groups["worker"][0]
    environment = worker.environment(count(9000))
    at = {name: group[0].address for name, group in groups.items()}
    assert f"@{at['postgres']}/airflow" in environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("postgresql+psycopg2://airflow:")
    assert environment["AIRFLOW__CELERY__BROKER_URL"].endswith(f"@{at['redis']}:6379/0")
    assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == f"http://{at['api-server']}:8080/execution/"
    assert environment["AIRFLOW__API__BASE_URL"] == f"http://{at['api-server']}:8080"
    assert json.loads(environment["AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"])["host"] == f"http://{at['sandbox']}:8085"
    warehouse = json.loads(environment["AIRFLOW_CONN_OUTBOUND_TRANSFER_WAREHOUSE"])
    assert (warehouse["host"], warehouse["conn_type"]) == (at["warehouse"], "postgres")


@pytest.mark.parametrize("text", ["postgres", "db+postgresql://x", "my-redis", "//redis-two/", "celery@worker-1"])
def test_nothing_else_becomes_an_address(groups: dict[str, list[Container]], text: str) -> None:
    assert groups["worker"][0].native(text) == text


def test_paths_of_the_image_become_the_containers_own(groups: dict[str, list[Container]]) -> None:
    one, two = groups["worker"]
    assert one.native("/opt/airflow/logs") == "/cluster/containers/worker-1/opt/airflow/logs"
    assert two.native("--data=/opt/airflow") == "--data=/cluster/containers/worker-2/opt/airflow"
    assert one.native("/srv/opt/airflow") == "/srv/opt/airflow"


def test_a_check_asks_the_container_itself(groups: dict[str, list[Container]]) -> None:
    for name in ("scheduler", "api-server", "sandbox"):
        assert f"//{groups[name][0].address}:" in groups[name][0].check()[-1]


def test_commands_are_run_as_the_images_run_them(groups: dict[str, list[Container]]) -> None:
    assert groups["worker"][1].command() == ["airflow", "celery", "worker"]
    assert groups["init"][0].command()[:2] == ["bash", "-c"]
    sandbox = groups["sandbox"][0]
    assert sandbox.command()[:2] == ["outbound-transfer-sandbox", f"--host={sandbox.address}"]


def test_an_environment_has_nothing_of_the_callers(groups: dict[str, list[Container]], monkeypatch: Any) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com")
    environment = groups["worker"][0].environment(count(9000))
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "CeleryExecutor"
    assert "HTTPS_PROXY" not in environment


def test_volumes_are_shared_and_the_rest_is_not(tmp_path: Path) -> None:
    groups = containers(read(TEXTS, variables(tmp_path / "outbox"), ["sandbox"]), tmp_path)
    for container in [*groups["worker"], *groups["api-server"]]:
        lay_out(container, tmp_path)
    one, two = groups["worker"]
    one.path("/opt/airflow/logs/a").write_text("log")
    (tmp_path / "outbox" / "b").write_text("file")
    assert two.path("/data/b").read_text() == "file"
    assert groups["api-server"][0].path("/opt/airflow/logs/a").read_text() == "log"
    one.path("/opt/airflow/own").touch()
    assert not two.path("/opt/airflow/own").exists()
