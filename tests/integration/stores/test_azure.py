"""Deliveries from Azurite, the Azure Blob Storage for development, through Airflow's object storage."""

from __future__ import annotations

import traceback
from urllib.parse import parse_qs, unquote

import pytest

from outbound_transfer.exceptions import SourceMissing, SourceUnreadable
from support.airflow_names import AirflowFailException
from support.azurite import KEY, Container, connection_json
from support.remote_files import digest, stored

pytestmark = pytest.mark.nightly


def test_a_folder_with_the_name_of_a_blob_is_not_left_out(container, deliver, sandbox, hook) -> None:
    for key in ("in/a", "in/a/b", "in/ab/c"):
        container.put(key, key.encode())
    assert sorted(stored(sandbox, deliver(f"{container.uri}/in/a*").run()["id"])) == ["a"]
    for glob, names in {"in/a*/*": ["b", "c"], "in/**": ["a", "b", "c"], "**/b": ["b"]}.items():
        try:
            result = deliver(f"{container.uri}/{glob}").run()
        except SourceUnreadable as error:  # not before adlfs 2026.8
            assert "in/a cannot be read" in str(error)
            assert "a file has the folder's name" in str(error)
        else:
            assert sorted(stored(sandbox, result["id"])) == names


#: What is named in vain, with what the error must say of it.
MISSING = {
    "abfs://wasb_default@{container}": "is not a file",
    "abfs://wasb_default@no-such-container/a.csv": "is not there",
    "abfs://wasb_default@no-such-container/*.csv": "no file matches",
}


@pytest.mark.parametrize("path", MISSING)
def test_what_is_missing_is_named_before_anything_is_created(container, deliver, sandbox, path) -> None:
    there, missing = container.put("in/a.csv", b"rows"), path.format(container=container.name)
    with pytest.raises((SourceUnreadable, AirflowFailException)) as failure:
        deliver(there, missing).run()
    assert missing in str(failure.value)
    assert MISSING[path] in str(failure.value)
    assert sandbox.requests() == []


@pytest.mark.parametrize("path", ["in/a.csv", "in/*.csv", "in/**/*.csv"])
@pytest.mark.parametrize("trouble", ["wrong key", "half a key", "signature for another container"])
def test_a_login_that_fails_shows_no_secret(
    container, azurite, deliver, sandbox, monkeypatch, capfd, caplog, path, trouble
) -> None:
    container.put("in/a.csv", b"rows")
    token = Container(azurite, f"{container.name}-2").sas_token("rl")
    wrong = KEY.replace("E", "F", 1)
    secret = {
        "wrong key": f"AccountKey={wrong}",
        "half a key": f"AccountKey={KEY[:41]}",
        "signature for another container": f"SharedAccessSignature={token}",
    }[trouble]
    monkeypatch.setenv("AIRFLOW_CONN_WASB_DEFAULT", connection_json(azurite, secret))

    with pytest.raises(SourceUnreadable) as failure:
        deliver(f"{container.uri}/{path}").run()

    assert not isinstance(failure.value, SourceMissing)
    told = "".join(traceback.format_exception(failure.value)) + "".join(capfd.readouterr()) + caplog.text
    for hidden in (KEY[1:41], parse_qs(token)["sig"][0]):
        assert hidden not in unquote(told)
    assert sandbox.requests() == []


def test_a_signature_that_may_not_list_is_an_error_of_a_glob_alone(
    container, azurite, deliver, sandbox, hook, monkeypatch
) -> None:
    container.put("in/a.csv", b"rows")
    token = container.sas_token("r")
    monkeypatch.setenv("AIRFLOW_CONN_WASB_DEFAULT", connection_json(azurite, f"SharedAccessSignature={token}"))
    with pytest.raises(SourceUnreadable, match="AuthorizationPermissionMismatch") as failure:
        deliver(f"{container.uri}/in/*.csv").run()
    assert not isinstance(failure.value, SourceMissing)
    assert sandbox.requests() == []
    result = deliver(f"{container.uri}/in/a.csv").run()
    assert stored(sandbox, result["id"]) == {"a.csv": digest(b"rows")}
