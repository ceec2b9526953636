"""The package under one version of Airflow: every module imports, and Airflow accepts what the provider declares."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import airflow
import jsonschema
import pytest

from outbound_transfer.get_provider_info import get_provider_info

pytestmark = pytest.mark.e2e

PACKAGES = ("outbound_transfer", "outbound_transfer_sandbox")


def module_names() -> list[str]:
    packages = [importlib.import_module(name) for name in PACKAGES]
    return [
        module.name
        for package in packages
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith(".__main__")
    ]


@pytest.mark.parametrize("name", module_names())
def test_every_module_imports(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Optional, and the constraints of older versions have none that is new enough.
        assert (error.name, name.split(".")[1]) == ("pyiceberg", "lake")


def test_provider_info_matches_the_schema_of_this_airflow() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)
