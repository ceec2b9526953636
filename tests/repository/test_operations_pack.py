"""What the operations pack names exists: metrics, labels, runbooks, commands, options, extras."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator

import pytest
import yaml

from outbound_transfer.cli.console import get_commands
from outbound_transfer.get_provider_info import get_provider_info
from outbound_transfer.observability.metrics import METRICS, MetricType
from outbound_transfer.store.tables import TABLES
from support.repository import REPOSITORY

PACK = REPOSITORY / "include/observability"
RUNBOOKS = {path.stem: path.read_text() for path in (REPOSITORY / "docs/runbooks").glob("*.md")}
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
VALUES = {path.stem: yaml.safe_load(path.read_text()) for path in PACK.glob("helm-values*.yaml")}
MAPPINGS = yaml.safe_load((PACK / "statsd-mapping.yml").read_text())["mappings"]
ALERTS = yaml.safe_load((PACK / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((PACK / "dashboard.json").read_text())

SUFFIXES = {MetricType.COUNTER: "_total", MetricType.GAUGE: "", MetricType.TIMER: "_seconds"}
#: Labels by name in Prometheus.
LABELS = {f"airflow_outbound_transfer_{one.name}{SUFFIXES[one.type]}": set(one.tags) for one in METRICS}


def expressions() -> Iterator[tuple[str, str]]:
    """Each expression, and the text around it that names labels."""
    for alert in ALERTS:
        yield alert["expr"], " ".join(alert["annotations"].values())
    for panel in DASHBOARD["panels"]:
        yield from ((target["expr"], target["legendFormat"]) for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"], ""


def test_the_mapping_has_each_metric_once() -> None:
    assert {rule["match"]: rule["name"] for rule in MAPPINGS} == {
        f"airflow.{one.full_name}": name for one, name in zip(METRICS, LABELS, strict=True)
    }
    assert len(MAPPINGS) == len(METRICS)
    assert VALUES["helm-values"]["statsd"]["extraMappings"] == MAPPINGS
    # A lost triggerer's last number outlives the window of the alert that nothing polls.
    assert {rule["match"].rpartition(".")[2]: rule["ttl"] for rule in MAPPINGS if "ttl" in rule} == {
        "deferred_waiters": "6h"
    }


@pytest.mark.parametrize(("expression", "text"), list(expressions()))
def test_each_metric_and_label_exists(expression: str, text: str) -> None:
    names = re.findall(r"airflow_outbound_transfer_\w+", expression)
    assert names
    labels = set[str]()
    for name in names:
        labels |= LABELS[re.sub(r"(_seconds)_(sum|count)$", r"\1", name)]
    grouped = re.findall(r"\b(?:by|on) \(([\w, ]+)\)", expression)
    named = {label for group in grouped for label in group.split(", ")}
    named |= set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression)) - {"__name__"}
    named |= set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text))
    assert named <= labels


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    site = PROJECT["urls"]["Documentation"]
    linked = {
        alert["annotations"]["runbook_url"].removeprefix(f"{site}runbooks/").rstrip("/"): alert["alert"]
        for alert in ALERTS
    }
    assert linked.keys() == RUNBOOKS.keys()
    assert len(linked) == len(ALERTS)
    for name, alert in linked.items():
        assert f"**You see** the alert `{alert}`" in RUNBOOKS[name], "or a search for the alert does not find it"
    assert {alert["labels"]["severity"] for alert in ALERTS} == {"critical", "warning"}
    assert {tuple(alert["annotations"]) for alert in ALERTS} == {("summary", "description", "runbook_url")}
    index, site_index = (REPOSITORY / "docs/README.md").read_text(), (REPOSITORY / "mkdocs.yml").read_text()
    for name in RUNBOOKS:
        assert f"(runbooks/{name}.md)" in index
        assert f"- runbooks/{name}.md" in site_index


@pytest.mark.parametrize("name", RUNBOOKS)
def test_a_runbook_says_what_to_do_with_commands_that_there_are(name: str) -> None:
    text = RUNBOOKS[name]
    assert re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE) == ["You see", "It means", "Look at", "Do", "Do not"]
    commands = {
        one.name: {sub.name for sub in getattr(one, "subcommands", ())} for one in get_commands()[0].subcommands
    }
    for command, sub, options in re.findall(r"`outbound-transfer ([\w-]+)(?: (\w[\w-]*))?(.*?)`", text):
        assert sub in commands[command] if commands[command] else command in commands
        assert command != "feed" or options == " --sql-conn-id …"  # without it, the command asks where the feed is
    tables = {f"outbound_transfer_{table.name}" for table in TABLES}
    assert set(re.findall(r"`(outbound_transfer_\w+)`", text)) <= tables


def test_the_runbooks_are_short() -> None:
    assert sum(len(text.split()) for text in RUNBOOKS.values()) <= 1_100


def test_panels_take_the_data_source_of_the_variable() -> None:
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "conn_id"]
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels})
    sources = [one["datasource"] for panel in panels for one in (panel, *panel["targets"])]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


def test_helm_values_name_connections_options_and_extras_that_there_are() -> None:
    from airflow.configuration import conf

    known = {section: set(found["options"]) for section, found in conf.configuration_description.items()}
    known["outbound_transfer"] = set(get_provider_info()["config"]["outbound_transfer"]["options"])
    known["celery_broker_transport_options"] = {"visibility_timeout"}
    for values in VALUES.values():
        for section, options in values["config"].items():
            assert options.keys() <= known[section]
    names = {one["envName"].removeprefix("AIRFLOW_CONN_").lower() for one in VALUES["helm-values"]["secret"]}
    assert set(VALUES["helm-values"]["config"]["outbound_transfer"].values()) <= names
    (extras,) = re.findall(r"outbound-transfer\[(.+?)\]", (PACK / "helm-values.yaml").read_text())
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    executors = {values["executor"] for name, values in VALUES.items() if name != "helm-values"}
    assert executors == {"CeleryExecutor", "KubernetesExecutor"}
