"""POST /v1/transfers: what a draft may be."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

pytestmark = pytest.mark.rule("R22")

ANN = {"email": "ann@example.com"}
SMS = {"email": "ann@example.com", "phone": "+1 (555) 010-9999"}
QUESTION = {"security": "question", "security_question": "Colour?", "security_answer": "blue"}
MANY = [{"email": f"user{n}@example.com"} for n in range(251)]


@pytest.mark.rule("R3; R11: expires_at")
def test_a_draft_costs_nothing_and_expires_after_thirty_days(api: Any, control: Any) -> None:
    response = api.create(message="Hello")
    transfer = response.json()
    lifetime = datetime.fromisoformat(transfer["expires_at"]) - datetime.fromisoformat(control.state()["clock"])
    assert abs(lifetime - timedelta(days=30)) < timedelta(seconds=10)
    assert transfer == {
        "id": transfer["id"],
        "status": "draft",
        "subject": "Report",
        "message": "Hello",
        "recipients": [{"email": "ann@example.com", "name": "ann", "picked_up_at": None}],
        "files": [],
        "expires_at": transfer["expires_at"],
        "sent_at": None,
    }
    assert response.status_code == 201
    assert response.headers["location"] == f"/v1/transfers/{transfer['id']}"
    assert api.http.get(response.headers["location"]).json() == transfer
    api.attached(transfer["id"])
    assert control.ledger() == []
    assert control.state()["outstanding_transfers"] == 0
    assert api.events().text == ""


@pytest.mark.rule("R12")
def test_a_recipients_name_has_a_default_and_the_phone_is_never_returned(api: Any) -> None:
    people = [ANN, {**ANN, "name": None}, {**ANN, "name": "Ann B."}, SMS]
    response = api.create(recipients=people)
    assert [each["name"] for each in response.json()["recipients"]] == ["ann", "ann", "Ann B.", "ann"]
    assert "phone" not in response.json()["recipients"][3]
    assert "(555)" not in response.text + api.http.get(response.headers["location"]).text


@pytest.mark.rule("R54, R55; R23: the limit of the subscription is checked at the send")
def test_fields_within_the_limits_are_returned_as_given(api: Any, control: Any) -> None:
    control.patch_account(plan="trial")
    for message in (None, "", "x" * 2000, "\U0001f600" * 2000):
        assert api.draft(message=message)["message"] == message
    assert api.draft(subject="x" * 100_000)["subject"] == "x" * 100_000
    assert len(api.draft(recipients=[{**each, "name": "n" * 50} for each in MANY[:250]])["recipients"]) == 250
    assert len(api.draft(recipients=[ANN, ANN, ANN])["recipients"]) == 3, "duplicates are not merged"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("subject", ...), ("subject", ""), ("subject", 7), ("subject", "a\x00b"),
        ("recipients", ...), ("recipients", []), ("recipients", ["ann@example.com"]), ("recipients", [{"name": "Ann"}]),
        ("recipients", [{"email": "ann@example.com", "name": 7}]), ("recipients", MANY), ("recipients", [ANN] * 251),
        ("recipients", [{"email": "ann@example.com", "phone": 5550109999}]),
        ("message", 7), ("message", "x" * 2001), ("security", "password"), ("security", "NONE"), ("note", "x"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_wrong_field_is_named(api: Any, refused: Any, field: str, value: Any) -> None:
    assert field in refused(api.create(**{field: value}), 400, "invalid_request")


@pytest.mark.rule("R23")
def test_a_malformed_address_is_named_and_a_well_formed_one_is_returned_as_given(api: Any, refused: Any) -> None:
    for address in (
        *("", "ann", "@example.com", "ann@example", "ann@exa mple.com", "ann@example.com,bob@example.com"),
        *("Ann <ann@example.com>", "ann@example.com\r\nBcc: b@c.de"),
    ):
        message = refused(api.create(recipients=[ANN, {"email": address}]), 400, "invalid_request")
        assert "recipients[1].email" in message, address
    good = ["ann.b+tag@mail.example.org", "o'neil@example.com", "ann@corp.test", "jörg@exämple.com"]
    recipients = api.draft(recipients=[{"email": each} for each in good])["recipients"]
    assert [each["email"] for each in recipients] == good


@pytest.mark.rule("R10; R24: an option that the account does not have")
def test_every_security_option_that_the_account_has(api: Any, control: Any, refused: Any) -> None:
    options = [{"security": name} for name in ("none", "email", "email_code", "login", None)]
    for fields in ({}, *options, QUESTION, {"security": "sms", "recipients": [SMS]}):
        response = api.create(**fields)
        assert response.status_code == 201, response.text
        assert not {"security", "security_question", "security_answer"} & set(response.json())
    control.patch_account(security_options=["none", "email"])
    refused(api.create(security="login"), 403, "auth_option_not_enabled")
    assert api.create(security="email").status_code == 201


@pytest.mark.rule("R24: unused fields")
@pytest.mark.parametrize("field", ["security_question", "security_answer"])
def test_a_question_needs_both_fields_and_nothing_else_takes_one(api: Any, refused: Any, field: str) -> None:
    for security in ("none", "email", "email_code", "sms", "login", ...):
        message = refused(api.create(security=security, recipients=[SMS], **{field: "x"}), 400, "invalid_request")
        assert field in message
    for value in (..., None, ""):
        assert field in refused(api.create(**{**QUESTION, field: value}), 400, "invalid_request")


@pytest.mark.rule("R22: security")
def test_the_account_default_applies(api: Any, control: Any, refused: Any) -> None:
    control.patch_account(default_security="question")
    assert "security_question" in refused(api.create(), 400, "invalid_request")
    assert api.create(security_question="Colour?", security_answer="blue").status_code == 201
    control.patch_account(default_security="sms")
    assert "phone" in refused(api.create(), 400, "invalid_request")


@pytest.mark.rule("R25")
def test_sms_needs_digits_with_punctuation_on_every_recipient(api: Any, refused: Any) -> None:
    for phone in ("5550109999", "+1 (555) 010-9999", "[1] 555.010.9999", "1/555 010-9999"):
        assert api.create(security="sms", recipients=[{**ANN, "phone": phone}]).status_code == 201, phone
    for phone in (None, "", "-", "+", "555-CALL", "555 x12", "\u0665\u0665\u0665", "55²"):
        others = [SMS, {**ANN, "phone": phone}]
        assert "phone" in refused(api.create(security="sms", recipients=others), 400, "invalid_request"), phone
    assert "phone" in refused(api.create(security="sms", recipients=[SMS, ANN]), 400, "invalid_request")
