"""Texts of drivers are shown without values of rows: each of these is what a driver says."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outbound_transfer.queries.errors import mask_values

SQL = "SELECT email, CAST(phone AS BIGINT) AS phone FROM crm.people2 WHERE team = 'board'"

#: Where a driver puts a value.
TEMPLATES = [
    "Conversion Error: Could not convert string '{}' to INT64 when casting from source column phone\n\nLINE 1: {}\n  ^",
    'invalid input syntax for type bigint: "{}"',
    "Could not decode to UTF-8 column 'phone' with text '{}'",
    "Truncated incorrect INTEGER value: '{}'",
    "Numeric value '{}' is not recognized",
    "Key (phone)=({}) already exists.",
    "Bad int64 value: {}",
]

PHONES = st.from_regex(r"(\+|00)?[1-9][0-9]{0,2}([ ./-]?\(?[0-9]{2,4}\)?){2,4}", fullmatch=True)


@given(st.sampled_from(TEMPLATES), PHONES)
@example(TEMPLATES[0], "+1 (555) 010-4477")
@example(TEMPLATES[-1], "٠١٢٣ ٤٥٦ ٧٨٩")  # digits of another script
def test_no_phone_is_shown(template: str, phone: str) -> None:
    assert not any(map(str.isnumeric, mask_values(template.format(phone, phone), SQL)))


@pytest.mark.parametrize("name", ["Ann Miller", "O'Brien", "O' Brien", "Ann 'Miller", 'Ann "A" Miller', "phone' Ann"])
@pytest.mark.parametrize("template", TEMPLATES[:5])
def test_a_quoted_text_is_shown_in_no_part(template: str, name: str) -> None:
    masked = mask_values(template.partition("\n")[0].format(name), SQL)
    assert not {"Ann", "Miller", "Brien", "A"} & set(masked.replace("'", " ").replace('"', " ").split())


def test_a_quote_that_does_not_end_is_shown_in_no_part() -> None:
    assert mask_values("column 'phone' has 'Ann Miller, who", SQL) == "column '***'"


def test_an_address_is_not_shown() -> None:
    assert mask_values("duplicate key: ann@example.com", SQL) == "duplicate key: ***"


@pytest.mark.parametrize(
    "text",
    [
        "no such table: crm.people2",
        'relation "crm.people2" does not exist',
        'column "PHONE" does not exist',
        "Table 'main.people2' doesn't exist",
        "You have an error in your SQL syntax; check the manual for the right syntax to use near 'team = 'board''",
        "Cannot execute statement in a READ ONLY transaction",
        "syntax error at or near `people2`, which isn't a table",
        "",
    ],
)
def test_what_the_query_contains_is_shown(text: str) -> None:
    assert mask_values(text, SQL) == text


@given(st.text(), st.text())
def test_any_text_can_be_masked(text: str, sql: str) -> None:
    mask_values(text, sql)
