"""An Airflow connection as settings: every way to write an address, and what cannot be used; and where a link leads."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.errors import InvalidSettings
from outbound_transfer.client.settings import open_client
from outbound_transfer.hooks.connection import settings_from_connection
from outbound_transfer.links.transfer import link_to, transfer_url

SECRET = "s3cret-key"


def settings_of(extra: Any = None, /, **fields: Any) -> Any:
    given: Any = {"conn_type": "outbound_transfer", "host": "https://h", "password": SECRET, "extra": "{}"}
    given |= {"schema": None, "port": None, "extra_dejson": extra or {}} | fields
    return settings_from_connection(SimpleNamespace(**given))


@pytest.mark.parametrize(
    ("host", "schema", "port", "address"),
    [
        ("https://h", "", None, "https://h/"), ("https://h/", "", 0, "https://h/"),
        ("http://h:8085", "", None, "http://h:8085/"), ("http://h:8085", "", 0, "http://h:8085/"),
        ("http://h:8085", "", 9, "http://h:8085/"), ("http://h:0", "", None, "http://h/"),
        ("http://h:0", "", 8085, "http://h:8085/"), ("h", None, None, "https://h/"),
        ("h", "http", 8085, "http://h:8085/"), ("h:8085", "", None, "https://h:8085/"),
        ("h/", "", 8085, "https://h:8085/"), ("[::1]", "http", 8085, "http://[::1]:8085/"),
        ("http://[::1]:8085", "", 9, "http://[::1]:8085/"),
    ],
)  # fmt: skip
def test_an_address_in_all_its_forms(host: str, schema: str, port: int | None, address: str) -> None:
    assert settings_of(host=host, schema=schema, port=port).base_url == address


UNUSABLE = [
    "ftp://h", "file:///etc", "http://", "https:///v1", "http://u:s3cret-key@h", "http://u@h", "http://h?a=b",
    "http://h#f", "http://h:99999", "http://h:x", "http://[::1", "http://[x]", "http://a..b", "::1", "http://h:-1",
    "http://h\0", "http://u:s3cret-key/@h", "h/v1", "https://h/s3cret-key", "http://h/a/b/", "h:8085/transfers",
    "", "http://" + "a" * 64, "my host", "http://h h",
]  # fmt: skip


@pytest.mark.parametrize("host", UNUSABLE)
def test_an_address_that_cannot_be_used_is_refused_and_its_secrets_are_not_quoted(host: str) -> None:
    with pytest.raises(InvalidSettings, match="the host ") as refused:
        settings_of(host=host)
    assert SECRET not in str(refused.value)


hosts = st.text(max_size=30) | st.text("htps:/.[]@?#%0189ax-", max_size=20) | st.sampled_from(UNUSABLE)


@given(hosts, st.sampled_from(["", "http", "https", "ftp", ":"]), st.none() | st.integers(-1, 70_000))
def test_any_connection_leads_to_a_service_or_says_what_to_correct(host: str, schema: str, port: int | None) -> None:
    try:
        settings = settings_of(host=host, schema=schema, port=port)
    except InvalidSettings:
        return
    request = httpx.Request("GET", httpx.URL(settings.base_url).join("v1/transfers"))
    assert request.url.host
    assert request.url.path == "/v1/transfers"


@pytest.mark.parametrize(
    ("field", "given", "value"),
    [
        *(("timeout", given, 60) for given in (None, "", 0, [])),
        *(("timeout", given, float(given)) for given in (5, "5", "0.5", 3_600)),
        *(("verify", given, False) for given in (False, "false", "False", "0", 0)),
        *(("verify", given, True) for given in (None, "", True, "true", "True", "1", 1)),
        *((field, None, "") for field in ("web_url", "event_api_key")),
        ("event_api_key", 7, "7"),
    ],
)
def test_an_extra_field_may_be_absent_empty_or_written_as_text(field: str, given: Any, value: Any) -> None:
    assert getattr(settings_of({field: given}), field) == value


@pytest.mark.parametrize(
    ("field", "given", "said"),
    [
        *(("timeout", given, "timeout") for given in ("soon", -1, "nan", "inf", math.inf, 1e9, 3_601, [1], "1,5")),
        *(
            ("verify", given, "the extra field verify must be true or false")
            for given in (" no ", "off", "yes", "banana", "/etc/ca.pem", 2, -1, 0.5, [1], {"a": 1})
        ),
        *((field, [SECRET], f"the extra field {field} must be a string") for field in ("event_api_key", "web_url")),
    ],
)
def test_an_extra_field_that_cannot_be_used_is_named_and_not_quoted(field: str, given: Any, said: str) -> None:
    with pytest.raises(InvalidSettings, match=said) as refused:
        settings_of({field: given})
    assert SECRET not in str(refused.value)


def test_a_link_leads_to_the_web_application_and_else_to_the_service() -> None:
    of_acme = settings_of({"web_url": "https://acme.example.com/#/t/{transfer_id}"})
    assert link_to(settings_of(), "a&b") == "https://h/transfers/a%26b"
    assert link_to(of_acme, "a&b") == "https://acme.example.com/#/t/a%26b"


def test_an_extra_that_is_not_json_is_not_taken_for_an_empty_one() -> None:
    """Airflow logs it, and takes it for empty: the certificate would be checked, or the event key be missing."""
    twice = json.dumps(json.dumps({"verify": False}))
    for extra in (f"{{event_api_key: {SECRET}}}", "verify=false", "{'verify': false}", "[]", twice):
        with pytest.raises(InvalidSettings, match="must be a JSON object"):
            settings_of(extra=extra)
    assert all(settings_of(extra=extra).verify for extra in ("{}", "", None))


def test_a_connection_of_another_type_is_refused() -> None:
    for kind in ("http", "generic", "", None):
        with pytest.raises(InvalidSettings, match="type must be .* .in a URI outbound-transfer://., not"):
            settings_of(conn_type=kind)


def test_settings_show_no_key() -> None:
    settings = settings_of({"event_api_key": "obs_s3cret"})
    assert SECRET not in f"{settings!r} {settings}"
    assert "obs_s3cret" not in f"{settings!r} {settings}"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HTTPS_PROXY", "ftp://proxy", r"a proxy environment variable \(HTTPS_PROXY, "),
        ("HTTPS_PROXY", "http://proxy:x", "is not a proxy's address"),
        ("ALL_PROXY", "socks://proxy:1080", "is not a proxy's address"),
        ("SSL_CERT_FILE", "/not/there.pem", "SSL_CERT_FILE names certificates that cannot be read: No such file"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(monkeypatch, variable: str, value: str, said: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSettings, match=said):
        open_client(settings_of())


def test_a_proxy_variable_for_other_addresses_causes_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example.com:3128")
    for variable, value in {"NO_PROXY": "localhost,[::1],fe80::/10", "ALL_PROXY": "socks://127.0.0.1:1080"}.items():
        monkeypatch.setenv(variable, value)
        open_client(settings_of()).close()


@pytest.mark.parametrize(
    ("web_url", "transfer_id", "url"),
    [
        ("https://acme.example.com", "tr_1", "https://acme.example.com/transfers/tr_1"),
        ("https://acme.example.com/sub/", "tr_1", "https://acme.example.com/sub/transfers/tr_1"),
        ("https://acme.example.com/#/t/{transfer_id}", "tr_1", "https://acme.example.com/#/t/tr_1"),
        ("https://acme.example.com/t?id={transfer_id}&x=1", "a=ü", "https://acme.example.com/t?id=a%3D%C3%BC&x=1"),
        ("https://acme.example.com", "../keys?a#b", "https://acme.example.com/transfers/..%2Fkeys%3Fa%23b"),
        ("http://[::1]:8085", "tr_1", "http://[::1]:8085/transfers/tr_1"),
    ],
)
def test_an_id_is_quoted_whole(web_url, transfer_id, url) -> None:
    assert transfer_url(web_url, transfer_id) == url


@pytest.mark.parametrize(
    "web_url",
    ["", "acme.example.com", "javascript:alert(1)//{transfer_id}", "ftp://acme.example.com", "https://[acme", "https://",
     "https://ann:secret@acme.example.com", "https://{transfer_id}.example.com", "https://acme.example.com/\n",
     "https://acme.example.com\\@evil.example.com", "https://acme.example.com/ a", "https://acme.example.com?key=1"],
)  # fmt: skip
def test_no_link_where_none_is_safe(web_url) -> None:
    assert transfer_url(web_url, "tr_1") == ""


def test_no_link_without_a_valid_id() -> None:
    for transfer_id in ("", ".", "..", "\udcff", None, 7):
        assert transfer_url("https://acme.example.com", transfer_id) == ""
