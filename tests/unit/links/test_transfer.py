"""Where a link to a transfer leads, whatever a connection or the service says."""

from __future__ import annotations

import pytest

from outbound_transfer.links.transfer import transfer_url


@pytest.mark.parametrize(
    ("web_url", "transfer_id", "url"),
    [
        ("https://acme.example.com", "tr_1", "https://acme.example.com/transfers/tr_1"),
        ("https://acme.example.com/sub/", "tr_1", "https://acme.example.com/sub/transfers/tr_1"),
        ("https://acme.example.com/#/t/{transfer_id}", "tr_1", "https://acme.example.com/#/t/tr_1"),
        (
            "https://acme.example.com/t?id={transfer_id}&x=1",
            "a&b=ü",
            "https://acme.example.com/t?id=a%26b%3D%C3%BC&x=1",
        ),
        ("https://acme.example.com", "../keys?a#b", "https://acme.example.com/transfers/..%2Fkeys%3Fa%23b"),
        ("http://[::1]:8085", "tr_1", "http://[::1]:8085/transfers/tr_1"),
    ],
)
def test_an_id_is_quoted_whole(web_url, transfer_id, url) -> None:
    assert transfer_url(web_url, transfer_id) == url


@pytest.mark.parametrize(
    "web_url",
    [
        "",
        "acme.example.com",
        "javascript:alert(1)//{transfer_id}",
        "ftp://acme.example.com",
        "https://ann:secret@acme.example.com",
        "https://{transfer_id}.example.com",
        "https://acme.example.com\\@evil.example.com",
        "https://acme.example.com/ a",
        "https://acme.example.com/\n",
        "https://acme.example.com?key=1",
        "https://[acme",
        "https://",
    ],
)
def test_no_link_where_none_is_safe(web_url) -> None:
    assert transfer_url(web_url, "tr_1") == ""


@pytest.mark.parametrize("transfer_id", ["", ".", "..", "\udcff", None, 7])
def test_no_link_without_a_valid_id(transfer_id) -> None:
    assert transfer_url("https://acme.example.com", transfer_id) == ""
