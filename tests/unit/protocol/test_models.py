"""A delivery is validated before any call to the service (service-api.md, R22)."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Iterator
from itertools import product
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.protocol.models import SECURITY_OPTIONS, NewTransfer, Transfer, build_new_transfer, to_builtins

ANN = "ann@example.com"
PHONE = "+49 (30) 555-0199"
ANSWER = "my secret dog"


def made(**given: Any) -> NewTransfer:
    return build_new_transfer(**{"subject": "Report", "recipients": ANN, **given})


def sent_as(new: NewTransfer) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(msgspec.json.encode(new))
    return body


def problems(**given: Any) -> list[str]:
    """What is wrong, a line each; nothing where all is well."""
    try:
        made(**given)
    except InvalidDelivery as refused:
        first, *lines = str(refused).split("\n- ")
        assert first == "The delivery cannot be made, nothing was created:"
        return lines
    return []


# ------------------------------------------------------------------------------------------------------- recipients


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (ANN, [{"email": ANN}]),
        ([ANN, "bob@example.org"], [{"email": ANN}, {"email": "bob@example.org"}]),
        ((ANN, "bob@example.org"), [{"email": ANN}, {"email": "bob@example.org"}]),
        ({"email": ANN}, [{"email": ANN}]),
        ([{"email": ANN, "name": "Ann", "phone": PHONE}], [{"email": ANN, "name": "Ann", "phone": PHONE}]),
        ([{"email": ANN, "name": None, "phone": None}], [{"email": ANN}]),
        ([MappingProxyType({"email": ANN})], [{"email": ANN}]),
        (UserDict({"email": ANN}), [{"email": ANN}]),
        ({ANN: 1}.keys(), [{"email": ANN}]),
        (["jörg@exämple.com"], [{"email": "jörg@exämple.com"}]),
    ],
    ids=repr,
)
def test_recipients_come_in_many_forms(given: Any, asked: list[dict[str, str]]) -> None:
    assert sent_as(made(recipients=given)) == {"subject": "Report", "recipients": asked}


@pytest.mark.parametrize("number", [1, 250])
def test_as_many_recipients_as_are_allowed(number: int) -> None:
    assert problems(recipients=[f"ann{each}@example.com" for each in range(number)]) == []


@pytest.mark.parametrize("again", [ANN, ANN.upper(), {"email": ANN, "name": "Ann"}])
def test_an_address_that_comes_twice_is_named(again: Any) -> None:
    (problem,) = problems(recipients=[ANN, "bob@example.com", again])
    assert problem == f"recipient '{ANN}' occurs more than once, and would get one email each time"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("strauß@example.com", "strauss@example.com"),
        ("ann@straße.example", "ann@strasse.example"),
        ("ann@βόλος.example", "ann@βόλοσ.example"),
    ],
)
def test_addresses_that_differ_are_two_people(one: str, other: str) -> None:
    assert problems(recipients=[one, other]) == []
    assert len(problems(recipients=[one, other, one.upper().replace("SS", "ß")])) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("jörg@exämple.com", "JÖRG@EXÄMPLE.com"),
        ("ann@exämple.com", "ann@xn--exmple-cua.com"),
    ],
)
def test_addresses_that_dns_and_unicode_take_for_one_are_one(one: str, other: str) -> None:
    (problem,) = problems(recipients=[one, other])
    assert "occurs more than once" in problem


def test_text_of_a_mapping_that_python_cannot_hold_is_refused() -> None:
    (problem,) = problems(recipients="[{['email']: 'ann@example.com'}]")
    assert "neither JSON nor a list or mapping in Python" in problem


@pytest.mark.parametrize(("given", "number"), [([], 0), ([ANN] * 251, 251), (["no address"] * 251, 251), (iter(()), 0)])
def test_too_few_or_too_many_recipients(given: Any, number: int) -> None:
    advice = ": split the delivery" if number else ""
    assert problems(recipients=given)[0] == f"recipients must be 1 to 250, not {number}{advice}"


@pytest.mark.parametrize(
    "address",
    [
        "ann@",
        "@example.com",
        "a b@example.com",
        "ann@example",
        "ann@-x.com",
        "ann@@example.com",
        "ann@exa\0mple.com",
        "\ud800@example.com",
        f"Ann <{ANN}>",
        f"{ANN}\n",
        f" {ANN}",
        f"{ANN},bob@example.org",
    ],
)
def test_an_invalid_address_is_named(address: str) -> None:
    (problem,) = problems(recipients=[ANN, address])
    assert problem.startswith(f"recipient {address!r} is not an address: ")


@pytest.mark.parametrize("given", ["", "ann", PHONE, json.dumps(json.dumps([{"email": ANN, "phone": PHONE}]))])
def test_no_error_quotes_a_phone_that_is_given_as_an_address(given: str) -> None:
    (problem,) = problems(recipients=[ANN, given])
    assert problem.startswith("recipient '***' is not an address: ")
    assert PHONE not in problem


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"email": ANN, "fone": "1"},
            "has the field 'fone', but may only have email, name and phone",
        ),
        ({"name": "Ann"}, "missing required field `email`"),
        ({"email": None}, "Expected `str`, got `null` - at `$.email`"),
        ({"email": ANN, "phone": 555}, "got `int` - at `$.phone`"),
        ({"email": ANN, 1: "x"}, "has the field '1', but may only have email, name and phone"),
        ({"email": ANN, "name": "\ud800"}, "not valid Unicode"),
        (7, "must be an address or a mapping, not int"),
        ([ANN], "not list. If it comes from expand() over a mapping"),
        (None, "must be an address or a mapping, not NoneType"),
    ],
    ids=repr,
)
def test_a_recipient_of_another_shape_is_named_by_its_position(given: Any, said: str) -> None:
    (problem,) = problems(recipients=[ANN, given])
    assert problem.startswith("recipient 2: ")
    assert said in problem


@pytest.mark.parametrize("given", [None, 7])
def test_recipients_that_are_none(given: Any) -> None:
    assert problems(recipients=given)[0].startswith("recipient 1: must be an address or a mapping")


# ------------------------------------------------------------------------------------------------------------ texts


@pytest.mark.parametrize("subject", ["", " ", "\n\t", "\u3000", None])
def test_a_subject_is_not_empty(subject: Any) -> None:
    assert problems(subject=subject) == ["subject must not be empty; a template without a value is"]


def test_a_subject_has_no_limit() -> None:
    assert problems(subject="s" * 100_000) == []


@pytest.mark.parametrize("character", ["m", "é", "😀", "\U0010ffff"])
def test_a_message_has_two_thousand_characters_at_most(character: str) -> None:
    assert problems(message=character * 2_000) == []
    assert problems(message=character * 2_001) == ["message has 2,001 characters; 2,000 are allowed"]


@pytest.mark.parametrize("field", ["subject", "message", "security", "security_question", "security_answer"])
@pytest.mark.parametrize(("value", "said"), [(7, "must be text, not int"), ([ANSWER], "must be text, not list")])
def test_a_value_that_is_not_text_is_rejected_and_not_quoted(field: str, value: Any, said: str) -> None:
    assert problems(**{field: value}) == [f"{field} {said}"]


@pytest.mark.parametrize("field", ["subject", "message", "security_question", "security_answer"])
def test_half_a_character_is_refused(field: str) -> None:
    assert f"{field} is not valid Unicode" in problems(**{field: "a\ud800"})


@pytest.mark.parametrize("field", ["message", "security_question", "security_answer"])
def test_nothing_is_left_out(field: str) -> None:
    assert sent_as(made(**{field: ""})) == sent_as(made()) == {"subject": "Report", "recipients": [{"email": ANN}]}


# --------------------------------------------------------------------------------------------------------- security


def security_problems(option: str | None, *, question: bool, answer: bool, phone: bool) -> Iterator[str]:
    """What service-api.md, R24 and R25, say is wrong, as a table of its own."""
    for field, is_given in (("security_question", question), ("security_answer", answer)):
        if option == "question" and not is_given:
            yield f"security 'question' needs {field}"
        if is_given and option in {"none", "email", "email_code", "sms", "login"}:
            yield f"{field} is not used with security {option!r}"
    if option == "sms" and not phone:
        yield f"security 'sms' needs the phone of {ANN}"


@pytest.mark.parametrize(
    ("option", "question", "answer", "phone"), list(product([None, *SECURITY_OPTIONS], *[[False, True]] * 3))
)
def test_each_security_option_needs_its_own_fields(
    option: str | None, question: bool, answer: bool, phone: bool
) -> None:
    given = {
        "security": option,
        "security_question": "Which?" if question else None,
        "security_answer": ANSWER if answer else None,
        "recipients": {"email": ANN, "phone": PHONE if phone else None},
    }
    assert problems(**given) == list(security_problems(option, question=question, answer=answer, phone=phone))


@pytest.mark.parametrize("others", [{}, {"security_question": "Which?", "security_answer": ANSWER}], ids=repr)
def test_an_empty_security_option_is_not_the_accounts(others: dict[str, str]) -> None:
    assert problems(security="", **others) == [
        "security must not be empty: leave it out, or give None, for the account's default"
    ]
    assert made(security=None).security is None


def test_the_security_options_are_the_documents() -> None:
    assert SECURITY_OPTIONS == ("none", "email", "email_code", "question", "sms", "login")
    (problem,) = problems(security="retina")
    assert problem == "security must be one of none, email, email_code, question, sms, login, not 'retina'"


@pytest.mark.parametrize(
    ("phone", "good"),
    [
        ("5550199", True),
        (PHONE, True),
        ("[555]{01}.99/1\u20132", True),
        ("555_0199", True),
        ("555 CALL", False),
        ("+", False),
        (" ", False),
        ("\u0665\u0665\u0665", False),
        ("5²", False),
    ],
)
def test_a_phone_is_digits_among_punctuation(phone: str, good: bool) -> None:
    found = problems(security="sms", recipients={"email": ANN, "phone": phone})
    assert found == ([] if good else [f"the phone of {ANN} must be digits, optionally with spaces and punctuation"])


# ------------------------------------------------------------------------------------------------------ all of them


def test_all_problems_are_reported_together() -> None:
    found = problems(
        subject=" ",
        recipients=["ann@", {"email": ANN, "fone": PHONE}, ANN],
        message="m" * 2_001,
        security="sms",
        security_answer=ANSWER,
    )
    assert [problem.split(":")[0] for problem in found] == [
        "recipient 2",
        "subject must not be empty; a template without a value is",
        "message has 2,001 characters; 2,000 are allowed",
        "recipient 'ann@' is not an address",
        "security_answer is not used with security 'sms'",
        "security 'sms' needs the phone of ann@",
        f"security 'sms' needs the phone of {ANN}",
    ]


secrets = st.text("0123456789-+ abcxyz", min_size=6, max_size=20).filter(str.strip)


@given(answer=secrets, phone=secrets, option=st.sampled_from([None, *SECURITY_OPTIONS, "retina"]), extra=st.booleans())
def test_no_text_made_of_it_holds_a_secret(answer: str, phone: str, option: str | None, extra: bool) -> None:
    recipient = {"email": ANN, "phone": phone} | ({"fone": phone} if extra else {})
    try:
        new = made(recipients=[recipient], security=option, security_answer=answer, security_question="Q")
    except InvalidDelivery as refused:
        texts = str(refused) + repr(refused)
    else:
        texts = repr(new) + str(new) + repr(new.recipients) + f"{new} {new.recipients[0]}"
        assert set(new.secrets) == {answer, phone}
    assert answer not in texts
    assert phone not in texts


# ------------------------------------------------------------------------------------------------------- resources


def test_a_transfer_may_say_more_or_less_than_is_documented() -> None:
    transfer = msgspec.json.decode(b'{"id": "t", "status": "new", "subject": "", "color": "red"}', type=Transfer)
    assert (transfer.files, transfer.recipients, transfer.is_draft, transfer.picked_up_count) == (None, (), False, 0)


def test_resources_become_plain_json() -> None:
    body = {
        "id": "t",
        "status": "partial",
        "subject": "S",
        "expires_at": "2026-01-01T00:00:00Z",
        "message": None,
        "recipients": [{"email": ANN, "name": "ann", "picked_up_at": "2026-01-01T00:00:00Z"}],
        "files": [{"id": "f", "name": "é.txt", "size": 2**40}],
        "sent_at": None,
    }
    assert to_builtins(msgspec.convert(body, Transfer)) == body
    assert to_builtins(None) is None
