"""An Airflow connection as settings: every way to write an address, and what cannot be used."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer.client.settings import Settings
from outbound_transfer.hooks.connection import build_base_url, settings_from_connection
from outbound_transfer.protocol.errors import InvalidSettings
from outbound_transfer.protocol.messages import Api

SECRET = "s3cret-key"


def connection(**fields: Any) -> Any:
    given = {"host": "https://h", "schema": None, "port": None, "password": SECRET, "extra_dejson": {}, **fields}
    return SimpleNamespace(**given)


@pytest.mark.parametrize(
    ("host", "schema", "port", "address"),
    [
        ("https://h", "", None, "https://h/"),
        ("https://h/", "", 0, "https://h/"),
        ("http://h:8085", "", None, "http://h:8085/"),
        ("http://h:8085", "", 0, "http://h:8085/"),
        ("http://h:8085", "", 9, "http://h:8085/"),
        ("http://h:0", "", None, "http://h/"),
        ("http://h:0", "", 8085, "http://h:8085/"),
        ("h", "", None, "https://h/"),
        ("h", "http", 8085, "http://h:8085/"),
        ("h:8085", "", None, "https://h:8085/"),
        ("h/", "", 8085, "https://h:8085/"),
        ("[::1]", "http", 8085, "http://[::1]:8085/"),
        ("http://[::1]:8085", "", 9, "http://[::1]:8085/"),
    ],
)
def test_an_address_in_all_its_forms(host: str, schema: str, port: int | None, address: str) -> None:
    assert build_base_url(host, schema, port) == address
    assert settings_from_connection(connection(host=host, schema=schema, port=port)).base_url == address


UNUSABLE = [
    *("", "ftp://h", "file:///etc", "http://", "https:///v1", "http://u:s3cret-key@h", "http://u@h", "http://h?a=b"),
    *(
        "http://h#f",
        "http://h:99999",
        "http://h:x",
        "http://[::1",
        "http://[x]",
        "http://a..b",
        "::1",
        "http://" + "a" * 64,
    ),
    *("http://h:-1", "http://h\x00", "http://u:s3cret-key/@h"),
]


@pytest.mark.parametrize("host", UNUSABLE)
def test_an_address_that_cannot_be_used_is_refused_and_its_secrets_are_not_quoted(host: str) -> None:
    with pytest.raises(InvalidSettings, match="the host ") as refused:
        settings_from_connection(connection(host=host))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("host", ["h/v1", "https://h/s3cret-key", "http://h/a/b/", "h:8085/transfers"])
def test_a_path_in_the_host_is_refused_and_not_quoted(host: str) -> None:
    with pytest.raises(InvalidSettings, match="the host must hold no path") as refused:
        settings_from_connection(connection(host=host))
    assert SECRET not in str(refused.value)


hosts = st.text(max_size=30) | st.text("htps:/.[]@?#%0189ax-", max_size=20) | st.sampled_from(UNUSABLE)


@given(hosts, st.sampled_from(["", "http", "https", "ftp", ":"]), st.none() | st.integers(-1, 70_000))
def test_any_connection_makes_a_client_or_says_what_to_correct(host: str, schema: str, port: int | None) -> None:
    try:
        settings = settings_from_connection(connection(host=host, schema=schema, port=port))
    except InvalidSettings:
        return
    request = httpx.Request("GET", httpx.URL(settings.base_url).join("v1/transfers"))
    assert request.url.host
    assert request.url.path.endswith("/v1/transfers")


@pytest.mark.parametrize(
    ("given", "timeout"), [(None, 60), ("", 60), (0, 60), ([], 60), (5, 5), ("5", 5), ("0.5", 0.5), (3_600, 3_600)]
)
def test_a_timeout(given: Any, timeout: float) -> None:
    assert settings_from_connection(connection(extra_dejson={"timeout": given})).timeout == timeout


@pytest.mark.parametrize("given", ["soon", -1, "nan", "inf", math.inf, 1e9, 3_601, [1], "1,5"])
def test_an_invalid_timeout_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSettings, match="timeout"):
        settings_from_connection(connection(extra_dejson={"timeout": given}))


@pytest.mark.parametrize(
    ("given", "verify"),
    [
        *((value, False) for value in (False, "false", "False", "0", 0)),
        *((value, True) for value in (None, "", True, "true", "True", "1", 1)),
    ],
)
def test_a_boolean_switches_the_check_of_certificates(given: Any, verify: bool) -> None:
    assert settings_from_connection(connection(extra_dejson={"verify": given})).verify is verify


@pytest.mark.parametrize("given", [" no ", "off", "OFF", "yes", "banana", "/etc/ca.pem", 2, -1, 0.5, [1], {"a": 1}])
def test_anything_else_for_the_check_of_certificates_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSettings, match="the extra field verify must be true or false"):
        settings_from_connection(connection(extra_dejson={"verify": given}))


@pytest.mark.parametrize("field", ["event_api_key", "web_url"])
def test_an_extra_field_of_a_wrong_type_is_named_and_not_quoted(field: str) -> None:
    with pytest.raises(InvalidSettings, match=f"the extra field {field} must be a text") as refused:
        settings_from_connection(connection(extra_dejson={field: [SECRET]}))
    assert SECRET not in str(refused.value)


def test_optional_fields_may_be_absent_empty_or_of_another_type() -> None:
    bare = settings_from_connection(connection(extra_dejson={"web_url": None, "event_api_key": None}))
    assert (bare.web_url, bare.event_api_key) == ("", "")
    assert settings_from_connection(connection(extra_dejson={"event_api_key": 7})).key(Api.FEED) == "7"


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("key", ["", " key", "key ", "a b", "key\n", "a\r\nb", "\tkey", "schl\u00fcssel", "\0"])
def test_an_invalid_key_is_refused_and_not_quoted(api: Api, key: str) -> None:
    settings = Settings("http://h/", transfer_api_key=key, event_api_key=key)
    with pytest.raises(InvalidSettings, match="password" if api is Api.TRANSFER else "event_api_key") as refused:
        settings.key(api)
    assert not key or key.strip() in ("", "key") or key not in str(refused.value)


def test_settings_show_no_key() -> None:
    settings = Settings("http://h/", transfer_api_key=SECRET, event_api_key=SECRET)
    assert (settings.key(Api.TRANSFER), settings.key(Api.FEED)) == (SECRET, SECRET)
    assert SECRET not in f"{settings!r} {settings}"
