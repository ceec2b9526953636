"""Secrets of a delivery are shown nowhere: what wraps them, and what masks them in a log."""

from __future__ import annotations

import copy
import json
import pickle
from collections import UserDict, UserList
from typing import Any

import pytest

from outbound_transfer.hidden import Hidden, hide, hide_phones, reveal

SECRET = "555-0199"


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Airflow was told to mask."""
    told: list[str] = []
    monkeypatch.setattr("airflow.sdk.log.mask_secret", told.append)
    return told


@pytest.mark.parametrize("show", [str, repr, "{}".format, lambda value: f"{value}", "%s".__mod__, ascii])
def test_a_hidden_value_shows_as_stars(show: Any) -> None:
    assert show(Hidden(SECRET)) == "***"
    assert SECRET not in show([Hidden(SECRET)]) + show({"a": Hidden(SECRET)})


def test_a_hidden_value_does_not_become_json_or_an_attribute() -> None:
    with pytest.raises(TypeError):
        json.dumps(Hidden(SECRET))
    assert json.dumps(Hidden(SECRET), default=str) == '"***"'
    assert not hasattr(Hidden(SECRET), "__dict__")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_is_hidden_and_reveals_the_same(duplicate: Any) -> None:
    again = duplicate(Hidden(SECRET))
    assert (repr(again), reveal(again)) == ("***", SECRET)


@pytest.mark.parametrize("value", [SECRET, 5550199])
def test_hiding_wraps_and_masks(masked: list[str], value: Any) -> None:
    hidden = hide(value)
    assert isinstance(hidden, Hidden)
    assert (hidden.reveal(), masked) == (str(value), [str(value)])
    assert hide(hidden) is hidden, "once is enough"


@pytest.mark.parametrize("nothing", [None, ""])
def test_nothing_is_not_hidden(masked: list[str], nothing: Any) -> None:
    assert (hide(nothing), masked) == (nothing, [])


ANN = {"email": "ann@example.com", "name": "Ann", "phone": SECRET}


@pytest.mark.parametrize(
    "recipients",
    [ANN, [ANN], (ANN, "bob@example.org"), [[ANN]], UserDict(ANN), UserList([ANN]), {"a": ANN}.values()],
    ids=repr,
)
def test_phones_are_hidden_in_every_form_of_recipients(masked: list[str], recipients: Any) -> None:
    hidden = hide_phones(recipients)
    assert SECRET not in repr(hidden)
    assert "ann@example.com" in repr(hidden)
    assert masked == [SECRET]
    assert SECRET in repr(reveal(hidden))


@pytest.mark.parametrize(
    "recipients", ["ann@example.com", ["ann@example.com"], None, "", [], {"email": "a", "phone": None}]
)
def test_recipients_without_phones_stay_what_they_are(masked: list[str], recipients: Any) -> None:
    assert hide_phones(recipients) == recipients
    assert reveal(hide_phones(recipients)) == recipients
    assert masked == []


def test_revealing_leaves_the_hidden_one_hidden(masked: list[str]) -> None:
    hidden = hide_phones([ANN])
    assert reveal(hidden) == [ANN]
    assert SECRET not in repr(hidden)
