"""What the README shows works as it stands there."""

from __future__ import annotations

import re

from support.repository import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_dag_to_copy_is_the_one_that_ships() -> None:
    _, _, code = (REPOSITORY / "dags/first_delivery.py").read_text().split("\n", 2)
    assert EXAMPLES[0] == code


def test_every_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = set(
        re.findall(r"\bmake ([a-z0-9-]+)", "\n".join(re.findall(r"`make [^`]+`|^make .*", README, re.MULTILINE)))
    )
    assert {"demo", "test"} <= named <= targets


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 110
