"""What a user is told of a delivery that the service would refuse, before any call; and how its answers are read."""

from __future__ import annotations

import json
from collections import UserDict
from itertools import product
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.models import decode_page, decode_transfer, describe
from outbound_transfer.client.new_transfer import SECURITY_OPTIONS, build_new_transfer

ANN, BOB = "ann@example.com", "bob@example.org"
PHONE, ANSWER = "+49 (30) 555-0199", "my secret dog"


def body(**given: Any) -> dict[str, Any]:
    """What is sent to the service."""
    new = build_new_transfer(**{"subject": "Report", "recipients": ANN, **given})
    return dict(json.loads(msgspec.json.encode(new)))


def problems(**given: Any) -> list[str]:
    """What is wrong, a line each."""
    try:
        body(**given)
    except InvalidDelivery as refused:
        first, *lines = str(refused).split("\n- ")
        assert first == "The delivery is invalid, so nothing was created:"
        return lines
    return []


FULL = {"email": ANN, "name": "Ann", "phone": PHONE}


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        *((given, [{"email": ANN}]) for given in (ANN, {"email": ANN}, UserDict({"email": ANN}), {ANN: 1}.keys())),
        *((given, [{"email": ANN}, {"email": BOB}]) for given in ([ANN, BOB], (ANN, BOB))),
        ([ANN, FULL | {"email": BOB}], [{"email": ANN}, FULL | {"email": BOB}]),
        ([FULL, {"email": BOB, "name": None, "phone": None}], [FULL, {"email": BOB}]),
        ([MappingProxyType({"email": ANN})], [{"email": ANN}]),
        (["jörg@exämple.com"], [{"email": "jörg@exämple.com"}]),
        ([f" {ANN}\r\n", {"email": f"{BOB}   ", "name": "Bob  "}], [{"email": ANN}, {"email": BOB, "name": "Bob"}]),
    ],
)
def test_recipients_come_in_many_forms(given: Any, asked: list[dict[str, str]]) -> None:
    assert body(recipients=given) == {"subject": "Report", "recipients": asked}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([ANN, BOB, ANN.upper()], f"recipient '{ANN}' occurs more than once, and would get one email each time"),
        ([ANN, {"email": ANN, "name": "Ann"}], "occurs more than once"),
        (["jörg@exämple.com", "JÖRG@EXÄMPLE.com"], "occurs more than once"),
        (["ann@exämple.com", "ann@xn--exmple-cua.com"], "occurs more than once"),
        ([ANN, {"email": ANN, "fone": "1"}], "recipient 2: has the field 'fone', but may only have email, name and"),
        ([ANN, {"email": ANN, 1: "x"}], "recipient 2: has the field '1', but"),
        ([ANN, {"name": "Ann"}], "recipient 2: Object missing required field `email`"),
        ([ANN, {"email": None}], "recipient 2: Expected `str`, got `null` - at `$.email`"),
        ([ANN, {"email": ANN, "phone": 555}], "got `int` - at `$.phone`"),
        ([ANN, {"email": ANN, "name": "\ud800"}], "recipient 2: not valid Unicode"),
        *(([ANN, other], "recipient 2: must be an address or a mapping, not ") for other in (7, [BOB], None)),
        *((other, "recipient 1: must be an address or a mapping, not ") for other in (None, 7)),
        ([], "recipients must be 1 to 250, not 0"),
        ([ANN] * 251, "recipients must be 1 to 250, not 251: split a larger delivery"),
        ("[{['email']: 'ann@example.com'}]", "neither JSON nor a Python list or mapping"),
    ],
)
def test_recipients_that_cannot_be_are_named(given: Any, said: str) -> None:
    assert said in problems(recipients=given)[0]


@pytest.mark.parametrize(
    "address",
    ["ann@", "@example.com", "a b@example.com", "ann@example", "ann@-x.com", "ann@@example.com",
     "ann@exa\0mple.com", "\ud800@example.com", f"Ann <{ANN}>", f"{ANN},{BOB}"],
)  # fmt: skip
def test_an_invalid_address_is_named_unless_it_may_be_a_phone_number(address: str) -> None:
    (problem,) = problems(recipients=[ANN, address])
    assert problem.startswith(f"recipient {address!r} is not an address: ")
    for other in ("", "ann", PHONE):
        (problem,) = problems(recipients=[ANN, other])
        assert problem.startswith("recipient '***' is not an address: ")
        assert PHONE not in problem


def test_addresses_that_differ_are_so_many_people() -> None:
    assert problems(recipients=("strauß@example.com", "strauss@example.com")) == []
    assert problems(recipients=("ann@βόλος.example", "ann@βόλοσ.example")) == []
    assert problems(recipients=tuple(f"ann{each}@example.com" for each in range(250))) == []


TEXTS = ["subject", "message", "security", "security_question", "security_answer"]


def test_a_subject_is_not_empty_and_a_message_has_two_thousand_characters_at_most() -> None:
    for subject in ("", " ", "\n\t", "\u3000", None):
        assert problems(subject=subject) == ["subject must not be empty; check whether its template has a value"]
    for character in ("m", "é", "😀", "\U0010ffff"):
        assert problems(message=character * 2_000, subject=character * 100_000) == []
        assert problems(message=character * 2_001) == ["message has 2,001 characters; 2,000 are allowed"]


@pytest.mark.parametrize("field", TEXTS)
def test_a_field_that_is_not_text_is_named_but_not_quoted(field: str) -> None:
    (said,) = problems(**{field: 7})
    assert said.startswith(f"{field} must be a string, not int: quote it")
    (said,) = problems(**{field: [ANSWER]})
    assert said.startswith(f"{field} must be a string, not list: quote it")
    assert problems(**{field: f"{ANSWER}\ud800"}) == [f"{field} is not valid Unicode"]


def test_an_empty_text_is_left_out() -> None:
    empty = dict.fromkeys(("message", "security_question", "security_answer"), "")
    assert body(**empty) == {"subject": "Report", "recipients": [{"email": ANN}]}


@pytest.mark.parametrize(("option", "given"), list(product([None, *SECURITY_OPTIONS], product(*[[False, True]] * 3))))
def test_each_security_option_needs_its_own_fields(option: str | None, given: tuple[bool, bool, bool]) -> None:
    question, answer, phone = given
    expected = []
    for field, is_given in (("security_question", question), ("security_answer", answer)):
        if option == "question" and not is_given:
            expected.append(f"security 'question' needs {field}")
        if is_given and option in {"none", "email", "email_code", "sms", "login"}:
            expected.append(f"{field} is not used with security {option!r}")
    if option == "sms" and not phone:
        expected.append(f"security 'sms' needs a phone number for {ANN}: digits and punctuation")
    assert expected == problems(
        security=option,
        security_question="Which?" if question else None,
        security_answer=ANSWER if answer else None,
        recipients={"email": ANN, "phone": PHONE if phone else None},
    )


def test_the_security_option_is_one_of_the_services_and_an_empty_one_is_not_the_accounts() -> None:
    assert SECURITY_OPTIONS == ("none", "email", "email_code", "question", "sms", "login")
    allowed = "none, email, email_code, question, sms, login, or None for the account's default"
    assert problems(security="retina") == [f"security must be one of {allowed}, not 'retina'"]
    assert problems(security="") == [f"security must be one of {allowed}, not ''"]
    assert "security" not in body(security=None)


def test_a_phone_is_digits_among_punctuation() -> None:
    for good in ("5550199", PHONE, "[555]{01}.99/1\u20132", "555_0199"):
        assert problems(security="sms", recipients={"email": ANN, "phone": good}) == []
    said = [f"security 'sms' needs a phone number for {ANN}: digits and punctuation"]
    for bad in ("555 CALL", "+", " ", "\u0665\u0665\u0665", "5²"):
        assert problems(security="sms", recipients={"email": ANN, "phone": bad}) == said


def test_all_that_is_wrong_is_said_at_once() -> None:
    recipients = ["ann@", {"email": ANN, "fone": PHONE}, ANN]
    found = problems(subject=" ", recipients=recipients, message="m" * 2_001, security="sms", security_answer=ANSWER)
    assert [problem.split(":")[0] for problem in found] == [
        "recipient 2",
        "subject must not be empty; check whether its template has a value",
        "message has 2,001 characters; 2,000 are allowed",
        "recipient 'ann@' is not an address",
        "security_answer is not used with security 'sms'",
        "security 'sms' needs a phone number for ann@",
        f"security 'sms' needs a phone number for {ANN}",
    ]


secrets = st.text("0123456789-+ abcxyz", min_size=6, max_size=20).filter(str.strip)


@given(answer=secrets, phone=secrets, option=st.sampled_from([None, *SECURITY_OPTIONS, "retina"]), extra=st.booleans())
def test_no_text_made_of_it_holds_a_secret(answer: str, phone: str, option: str | None, extra: bool) -> None:
    recipient = {"email": ANN, "phone": phone} | ({"fone": phone} if extra else {})
    given = {"recipients": [recipient], "security": option, "security_answer": answer, "security_question": "Q"}
    try:
        new = build_new_transfer(subject="Report", **given)  # type: ignore[arg-type]
    except InvalidDelivery as refused:
        texts = str(refused) + repr(refused)
    else:
        texts = f"{new!r} {new} {new.recipients!r} {new.recipients[0]}"
        assert set(new.secrets) == {answer, phone}
    assert answer not in texts
    assert phone not in texts


GOOD = {"id": "good", "status": "pending", "subject": "S", "recipients": [{"email": ANN}], "files": []}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
fields = st.sampled_from(["id", "status", "subject", "recipients", "files", "sent_at", "expires_at", "message"])


@given(st.lists(st.dictionaries(fields, anything).map(lambda wrong: {**GOOD, **wrong}) | anything, max_size=8))
def test_an_invalid_row_hides_no_other(rows: list[Any]) -> None:
    page = decode_page(json.dumps({"data": [*rows, GOOD], "next_cursor": None}).encode())
    assert page.data[-1].id == "good"
    assert len(page.data) + len(page.unreadable) == len(rows) + 1
    msgspec.json.encode(page)


#: As they are in JSON, and what becomes of them; None: whatever it is, it can be stored.
TEXTS_OF_OTHERS: list[tuple[bytes, str | None]] = [
    (rb"half \ud800", "half \ufffd"), (rb"\ud83d\ude00 whole", "\U0001f600 whole"),
    (rb"\udc00\ud83d", "\ufffd\ufffd"), (b"\xff", "\ufffd"), (b"\xed\xa0\x80", None),
    (b"tab\tand \x01", "tab\tand \x01"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "becomes"), TEXTS_OF_OTHERS)
def test_a_text_that_is_not_unicode_is_read(text: bytes, becomes: str | None) -> None:
    row = b'{"id": "t", "status": "pending", "n": ' + b"9" * 9_000 + b', "subject": "' + text + b'"}'
    page = decode_page(b'{"data": [' + row + b"," + json.dumps(GOOD).encode() + b'], "next_cursor": null}')
    for transfer in (decode_transfer(row), page.data[0]):
        assert transfer.subject == becomes or becomes is None
        assert transfer.subject.encode()
    assert page.data[1].id == "good"


def test_an_id_is_not_repaired_into_another() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_transfer(b'{"id": "\\ud800", "status": "pending", "subject": "S"}')
    with pytest.raises(msgspec.DecodeError):
        decode_page(rb'{"data": [], "next_cursor": "\ud800"}')


@pytest.mark.parametrize("text", ["draft\nforged line", "\x1b[31mpending", "x\u2028y", "\u202edraft"])
def test_a_log_line_about_a_transfer_is_printable(text: str) -> None:
    of_ann = {"email": f"{ANN}{text}", "picked_up_at": None}
    fields = {"status": text, "expires_at": text, "sent_at": text, "subject": text, "recipients": [of_ann]}
    read = decode_transfer(json.dumps({"id": "t", **fields}).encode())
    assert f"{read.status} {read.expires_at} {read.sent_at} {describe(read)}".isprintable()
    assert read.subject == text
    with pytest.raises(msgspec.DecodeError):
        decode_transfer(json.dumps({"id": text, **fields}).encode())
