"""Deliveries from Azurite, the Azure Blob Storage for development, through Airflow's object storage."""

from __future__ import annotations

import itertools
import random
import traceback
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, unquote

import pytest
from adlfs import AzureBlobFileSystem
from airflow.sdk.io import store

from outbound_transfer.airflow_compat.names import AirflowFailException
from outbound_transfer.protocol.errors import SourceChanged, SourceMissing, SourceUnreadable
from support.azurite import KEY, Container, connection_json, running_azurite
from support.remote_files import MB, NAMES, at_chunk, delivery_maker, digest, pattern, peak_memory, stored
from support.tasks import FakeTaskInstance

pytestmark = pytest.mark.nightly

LARGE = 96 * MB


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_azurite(tmp_path_factory.mktemp("azurite")) as address:
        yield address


_numbers = itertools.count()


@pytest.fixture
def container(azurite: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    monkeypatch.setenv("AIRFLOW_CONN_WASB_DEFAULT", connection_json(azurite))
    monkeypatch.setattr(store, "_STORE_CACHE", {})
    yield Container(azurite, f"container-{next(_numbers)}")
    AzureBlobFileSystem.clear_instance_cache()


@pytest.fixture
def deliver(connection, sandbox) -> Callable[..., FakeTaskInstance]:
    return delivery_maker(sandbox)


@pytest.mark.parametrize("way", ["uri", "glob"])
def test_blobs_are_delivered_under_their_very_names(container, deliver, sandbox, hook, way) -> None:
    contents = {name: name.encode() * 100 for name in NAMES}
    uris = [container.put(f"in/{name}", content) for name, content in contents.items()]

    result = deliver(*(uris if way == "uri" else [f"{container.uri}/in/*"])).run()

    assert stored(sandbox, hook, result["id"]) == {name: digest(content) for name, content in contents.items()}


@pytest.mark.parametrize("size", [0, 1, MB - 1, MB, 9 * MB + 1])
def test_every_byte_is_delivered(container, deliver, sandbox, hook, size) -> None:
    result = deliver(container.put("in/report.bin", pattern(size))).run()
    assert stored(sandbox, hook, result["id"]) == {"report.bin": digest(pattern(size))}


def test_uploads_at_once(container, deliver, sandbox, hook) -> None:
    contents = {f"{number}.bin": pattern(3 * MB + number) for number in range(6)}
    for name, content in contents.items():
        container.put(f"in/{name}", content)
    result = deliver(f"{container.uri}/in/*.bin").run()
    assert stored(sandbox, hook, result["id"]) == {name: digest(content) for name, content in contents.items()}


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("in/*.csv", ["a.csv", "b b.csv", "ü.csv"]),
        ("in/a*", ["a.csv"]),
        ("in/[ab]*.csv", ["a.csv", "b b.csv"]),
        ("in/**/*.csv", ["a.csv", "b b.csv", "deep.csv", "ü.csv"]),
        ("in/**/deep*", ["deep.csv"]),
        ("i*/s*/*.csv", ["deep.csv"]),
        ("*/c.txt", ["c.txt"]),
        ("*.csv", ["in.csv"]),
    ],
)
def test_a_glob_delivers_what_it_matches(container, deliver, sandbox, hook, glob, names) -> None:
    keys = ("in/a.csv", "in/b b.csv", "in/c.txt", "in/ü.csv", "in/sub/deep.csv", "in/as/a", "in.csv", "india/x", "ina")
    for key in keys:
        container.put(key, key.encode())
    assert sorted(stored(sandbox, hook, deliver(f"{container.uri}/{glob}").run()["id"])) == names


def test_a_folder_with_the_name_of_a_blob_is_not_left_out(container, deliver, sandbox, hook) -> None:
    for key in ("in/a", "in/a/b", "in/ab/c"):
        container.put(key, key.encode())
    assert sorted(stored(sandbox, hook, deliver(f"{container.uri}/in/a*").run()["id"])) == ["a"]
    for glob, names in {"in/a*/*": ["b", "c"], "in/**": ["a", "b", "c"], "**/b": ["b"]}.items():
        try:
            result = deliver(f"{container.uri}/{glob}").run()
        except SourceUnreadable as error:  # not before adlfs 2026.8
            assert "in/a cannot be read" in str(error)
            assert "a file has the folder's name" in str(error)
        else:
            assert sorted(stored(sandbox, hook, result["id"])) == names


#: What is named in vain, with what the error must say of it.
MISSING = {
    "abfs://wasb_default@{container}/none.csv": "is not there",
    "abfs://wasb_default@{container}/in": "is not a file",
    "abfs://wasb_default@{container}": "is not a file",
    "abfs://wasb_default@no-such-container/a.csv": "is not there",
    "abfs://wasb_default@{container}/in/*.pdf": "no file matches",
    "abfs://wasb_default@{container}/none/*.csv": "there is no folder",
    "abfs://wasb_default@{container}/in/a.csv/*.csv": "there is no folder",
    "abfs://wasb_default@no-such-container/*.csv": "there is no folder",
}


@pytest.mark.parametrize("path", MISSING)
def test_what_is_missing_is_named_before_anything_is_created(container, deliver, sandbox, path) -> None:
    there, missing = container.put("in/a.csv", b"rows"), path.format(container=container.name)
    with pytest.raises((SourceUnreadable, AirflowFailException)) as failure:
        deliver(there, missing).run()
    assert missing in str(failure.value)
    assert MISSING[path] in str(failure.value)
    assert sandbox.requests() == []


CHANGES: dict[str, Callable[[Container, int], object]] = {
    "same size": lambda container, size: container.put("b.bin", b"Y" * size),
    "longer": lambda container, size: container.put("b.bin", b"Y" * (size + 1)),
    "shorter": lambda container, size: container.put("b.bin", b"Y" * (size - 1)),
    "deleted": lambda container, size: container.delete("b.bin"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("size", "chunk"),
    [
        pytest.param(3 * MB, 0, id="between find and read"),
        pytest.param(3 * MB, 1, id="at the first bytes"),
        pytest.param(3 * MB, 3, id="at the last bytes"),
        pytest.param(20 * MB, 1, id="between two requests"),
    ],
)
def test_a_blob_that_changes_is_not_sent(container, deliver, sandbox, hook, monkeypatch, change, size, chunk) -> None:
    uris = [container.put("a.bin", b"A" * 1000), container.put("b.bin", b"B" * size)]
    at_chunk(monkeypatch, "b.bin", chunk, lambda: CHANGES[change](container, size))
    ti = deliver(*uris)

    with pytest.raises(SourceChanged):
        ti.run()

    assert sandbox.ledger() == []
    assert "b.bin" not in stored(sandbox, hook, ti.xcoms["transfer_id"])


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
    assert stored(sandbox, hook, result["id"]) == {"a.csv": digest(b"rows")}


def test_a_large_blob_needs_little_memory(container, deliver, sandbox, hook) -> None:
    content = random.Random(0).randbytes(LARGE)
    expected, large = digest(content), container.put("large.bin", content)
    del content
    deliver(container.put("small.bin", b"x")).run()  # imports, connections and buffers of the first delivery
    ti = deliver(large)

    with peak_memory() as peak:
        result = ti.run()

    print(f"memory: {peak[0] / MB:.0f} MB more than before for a blob of {LARGE // MB} MB")
    assert peak[0] < LARGE / 2
    assert stored(sandbox, hook, result["id"]) == {"large.bin": expected}
