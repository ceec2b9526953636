"""POST /v1/transfers: what a draft may be."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

pytestmark = pytest.mark.rule("R22")

ANN = {"email": "ann@example.com"}
SMS = {"email": "ann@example.com", "phone": "+1 (555) 010-9999"}
QUESTION = {"security": "question", "security_question": "Colour?", "security_answer": "blue"}


def test_creates_a_draft(api: Any) -> None:
    response = api.create(message="Hello")
    assert response.status_code == 201
    transfer = response.json()
    assert set(transfer) == {"id", "status", "subject", "message", "recipients", "files", "expires_at", "sent_at"}
    assert transfer["status"] == "draft"
    assert transfer["subject"] == "Report"
    assert transfer["message"] == "Hello"
    assert transfer["files"] == []
    assert transfer["sent_at"] is None
    assert transfer["recipients"] == [{"email": "ann@example.com", "name": "ann", "picked_up_at": None}]


def test_location_is_the_path_of_the_draft(api: Any) -> None:
    response = api.create()
    assert response.headers["location"] == f"/v1/transfers/{response.json()['id']}"
    assert api.http.get(response.headers["location"]).json() == response.json()


@pytest.mark.rule("R11: expires_at")
def test_a_draft_expires_thirty_days_after_creation(api: Any, control: Any) -> None:
    lifetime = datetime.fromisoformat(api.draft()["expires_at"]) - datetime.fromisoformat(control.state()["clock"])
    assert abs(lifetime - timedelta(days=30)) < timedelta(seconds=10)


@pytest.mark.rule("R3")
def test_creating_costs_nothing(api: Any, control: Any) -> None:
    draft = api.draft()
    api.attached(draft["id"])
    assert control.ledger() == []
    assert control.state()["outstanding_transfers"] == 0
    assert api.events().text == ""


@pytest.mark.rule("R12")
@pytest.mark.parametrize(("name", "shown"), [(..., "ann"), (None, "ann"), ("Ann B.", "Ann B.")])
def test_name_defaults_to_the_part_before_the_at(api: Any, name: Any, shown: str) -> None:
    recipient = ANN if name is ... else {**ANN, "name": name}
    assert api.draft(recipients=[recipient])["recipients"][0]["name"] == shown


@pytest.mark.rule("R12: phone")
def test_phone_is_never_returned(api: Any) -> None:
    response = api.create(recipients=[SMS])
    assert response.status_code == 201
    assert "phone" not in response.json()["recipients"][0]
    assert "(555)" not in response.text + api.http.get(response.headers["location"]).text


@pytest.mark.parametrize(
    "message", [None, "", "x" * 2000, "\U0001f600" * 2000], ids=["null", "empty", "2000", "astral"]
)
def test_message_up_to_2000_characters(api: Any, message: str | None) -> None:
    assert api.draft(message=message)["message"] == message


@pytest.mark.rule("R55: message")
def test_message_of_2001_characters(api: Any, refused: Any) -> None:
    assert "message" in refused(api.create(message="x" * 2001), 400, "invalid_request")


@pytest.mark.rule("R55: subject")
def test_subject_has_no_limit(api: Any) -> None:
    assert api.draft(subject="x" * 100_000)["subject"] == "x" * 100_000


@pytest.mark.rule("R54")
def test_250_recipients(api: Any) -> None:
    recipients = [{"email": f"user{n}@example.com", "name": "n" * 50} for n in range(250)]
    assert len(api.draft(recipients=recipients)["recipients"]) == 250


def test_251_recipients(api: Any, refused: Any) -> None:
    recipients = [{"email": f"user{n}@example.com"} for n in range(251)]
    assert "recipients" in refused(api.create(recipients=recipients), 400, "invalid_request")


def test_duplicate_addresses_are_not_merged(api: Any, refused: Any) -> None:
    assert len(api.draft(recipients=[ANN, ANN, ANN])["recipients"]) == 3
    refused(api.create(recipients=[ANN] * 251), 400, "invalid_request")


@pytest.mark.rule("R23: the limit is checked at the send")
def test_subscription_limit_is_not_checked_at_creation(api: Any, control: Any) -> None:
    control.patch_account(plan="trial")
    assert len(api.draft(recipients=[ANN, ANN])["recipients"]) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("subject", ...),
        ("subject", ""),
        ("subject", 7),
        ("subject", "a\x00b"),
        ("recipients", ...),
        ("recipients", []),
        ("recipients", ["ann@example.com"]),
        ("recipients", [{"name": "Ann"}]),
        ("recipients", [{"email": "ann@example.com", "name": 7}]),
        ("recipients", [{"email": "ann@example.com", "phone": 5550109999}]),
        ("message", 7),
        ("security", "password"),
        ("security", "NONE"),
        ("note", "x"),
    ],
)
def test_wrong_field_is_named(api: Any, refused: Any, field: str, value: Any) -> None:
    assert field in refused(api.create(**{field: value}), 400, "invalid_request")


@pytest.mark.rule("R23")
@pytest.mark.parametrize(
    "address",
    [
        "", "ann", "@example.com", "ann@example", "ann@exa mple.com", "ann@example.com,bob@example.com",
        "Ann <ann@example.com>", "ann@example.com\r\nBcc: b@c.de",
    ],
)  # fmt: skip
def test_malformed_address(api: Any, refused: Any, address: str) -> None:
    message = refused(api.create(recipients=[ANN, {"email": address}]), 400, "invalid_request")
    assert "recipients[1].email" in message


@pytest.mark.rule("R23")
@pytest.mark.parametrize(
    "address",
    ["ann@example.com", "ann.b+tag@mail.example.org", "o'neil@example.com", "ann@corp.test", "jörg@exämple.com"],
)
def test_well_formed_address_is_returned_as_given(api: Any, address: str) -> None:
    assert api.draft(recipients=[{"email": address}])["recipients"][0]["email"] == address


@pytest.mark.rule("R10")
@pytest.mark.parametrize(
    "fields",
    [
        {"security": "none"}, {"security": "email"}, {"security": "email_code"}, {"security": "login"},
        QUESTION, {"security": "sms", "recipients": [SMS]}, {"security": None}, {},
    ],
)  # fmt: skip
def test_every_security_option(api: Any, fields: dict[str, Any]) -> None:
    response = api.create(**fields)
    assert response.status_code == 201, response.text
    assert not {"security", "security_question", "security_answer"} & set(response.json())


@pytest.mark.rule("R24: unused fields")
@pytest.mark.parametrize("security", ["none", "email", "email_code", "sms", "login", ...])
@pytest.mark.parametrize("field", ["security_question", "security_answer"])
def test_field_that_the_option_does_not_use(api: Any, refused: Any, security: Any, field: str) -> None:
    message = refused(api.create(security=security, recipients=[SMS], **{field: "x"}), 400, "invalid_request")
    assert field in message


@pytest.mark.parametrize("field", ["security_question", "security_answer"])
@pytest.mark.parametrize("value", [..., None, ""])
def test_question_needs_both_fields(api: Any, refused: Any, field: str, value: Any) -> None:
    assert field in refused(api.create(**{**QUESTION, field: value}), 400, "invalid_request")


@pytest.mark.rule("R24: an option that the account does not have")
def test_option_that_the_account_does_not_have(api: Any, control: Any, refused: Any) -> None:
    control.patch_account(security_options=["none", "email"])
    refused(api.create(security="login"), 403, "auth_option_not_enabled")
    assert api.create(security="email").status_code == 201


@pytest.mark.rule("R22: security")
def test_the_account_default_applies(api: Any, control: Any, refused: Any) -> None:
    control.patch_account(default_security="question")
    assert "security_question" in refused(api.create(), 400, "invalid_request")
    assert api.create(security_question="Colour?", security_answer="blue").status_code == 201
    control.patch_account(default_security="sms")
    assert "phone" in refused(api.create(), 400, "invalid_request")


@pytest.mark.rule("R25")
@pytest.mark.parametrize("phone", ["5550109999", "+1 (555) 010-9999", "[1] 555.010.9999", "1/555 010-9999"])
def test_sms_accepts_digits_with_punctuation(api: Any, phone: str) -> None:
    assert api.create(security="sms", recipients=[{**ANN, "phone": phone}]).status_code == 201


@pytest.mark.rule("R25")
@pytest.mark.parametrize("phone", [..., None, "", "-", "+", "555-CALL", "555 x12", "\u0665\u0665\u0665", "55²"])
def test_sms_needs_digits_on_every_recipient(api: Any, refused: Any, phone: Any) -> None:
    other = ANN if phone is ... else {**ANN, "phone": phone}
    assert "phone" in refused(api.create(security="sms", recipients=[SMS, other]), 400, "invalid_request")
