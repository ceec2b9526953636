"""What holds of files in each remote store."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from outbound_transfer.exceptions import SourceChanged, SourceUnreadable
from support.airflow_names import AirflowFailException
from support.calls import during_upload
from support.remote_files import MB, NAMES, digest, pattern, peak_memory, stored

#: A file of many of the blocks that are read ahead.
LARGE = 96 * MB


@pytest.mark.parametrize("way", ["uri", "glob"])
def test_files_are_delivered_under_their_very_names(remote, deliver, sandbox, hook, way) -> None:
    contents = {name: name.encode() * 100 for name in NAMES}
    uris = [remote.put(f"in/{name}", content) for name, content in contents.items()]

    result = deliver(*(uris if way == "uri" else [f"{remote.uri}/in/*"])).run()

    assert stored(sandbox, result["id"]) == {name: digest(content) for name, content in contents.items()}


@pytest.mark.parametrize("size", [0, 1, MB - 1, MB, 9 * MB + 1])
def test_every_byte_is_delivered(remote, deliver, sandbox, hook, size) -> None:
    result = deliver(remote.put("in/report.bin", pattern(size))).run()
    assert stored(sandbox, result["id"]) == {"report.bin": digest(pattern(size))}


def test_uploads_at_once(remote, deliver, sandbox, hook) -> None:
    contents = {f"{number}.bin": pattern(3 * MB + number) for number in range(6)}
    for name, content in contents.items():
        remote.put(f"in/{name}", content)
    result = deliver(f"{remote.uri}/in/*.bin").run()
    assert stored(sandbox, result["id"]) == {name: digest(content) for name, content in contents.items()}


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("in/*.csv", ["a.csv", "b b.csv", "ü.csv"]),
        ("in/?.csv", ["a.csv", "ü.csv"]),
        ("in/a*", ["a.csv"]),
        ("in/[ab]*.csv", ["a.csv", "b b.csv"]),
        ("in/**/*.csv", ["a.csv", "b b.csv", "deep.csv", "ü.csv"]),
        ("in/**/deep*", ["deep.csv"]),
        ("i*/s*/*.csv", ["deep.csv"]),
        ("*/c.txt", ["c.txt"]),
        ("*.csv", ["in.csv"]),
        ("**/d*.csv", ["deep.csv"]),
    ],
)
def test_a_glob_delivers_what_it_matches(remote, deliver, sandbox, hook, glob, names) -> None:
    keys = ("in/a.csv", "in/b b.csv", "in/c.txt", "in/ü.csv", "in/sub/deep.csv", "in/as/a", "in.csv", "india/x", "ina")
    for key in keys:
        remote.put(key, key.encode())
    assert sorted(stored(sandbox, deliver(f"{remote.uri}/{glob}").run()["id"])) == names


#: What is named in vain, with what the error must say of it.
MISSING = {
    "/none.csv": "is not there",
    "/in": "is not a file",
    "/": "is not a file",
    "/in/*.pdf": "no file matches",
    "/none/*.csv": "no file matches",
    "/in/a.csv/*.csv": "no file matches",
}


@pytest.mark.parametrize("path", MISSING)
def test_what_is_missing_is_named_before_anything_is_created(remote, deliver, sandbox, path) -> None:
    there, missing = remote.put("in/a.csv", b"rows"), f"{remote.uri}{path}"
    with pytest.raises((SourceUnreadable, AirflowFailException)) as failure:
        deliver(there, missing).run()
    assert missing.rstrip("/") in str(failure.value)
    assert MISSING[path] in str(failure.value)
    assert sandbox.requests() == []


CHANGES: dict[str, Callable[[Any, int], object]] = {
    "same size": lambda remote, size: remote.put("in/b.bin", b"Y" * size),
    "longer": lambda remote, size: remote.put("in/b.bin", b"Y" * (size + 1)),
    "shorter": lambda remote, size: remote.put("in/b.bin", b"Y" * (size - 1)),
    "empty": lambda remote, size: remote.put("in/b.bin", b""),
    "deleted": lambda remote, size: remote.delete("in/b.bin"),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("size", "chunk"),
    [
        pytest.param(3 * MB, 0, id="between find and read"),
        pytest.param(3 * MB, 1, id="at the first bytes"),
        pytest.param(3 * MB, 3, id="at the last bytes"),
        pytest.param(20 * MB, 1, id="between two requests"),  # for what has not been read ahead
    ],
)
def test_a_file_that_changes_is_not_sent(remote, deliver, sandbox, change, size, chunk) -> None:
    uris = [remote.put("in/a.bin", b"A" * 1000), remote.put("in/b.bin", b"B" * size)]
    changing = during_upload("b.bin", chunk * MB, lambda: CHANGES[change](remote, size))
    with changing, pytest.raises(SourceChanged):
        deliver(*uris).run()

    assert sandbox.ledger() == []


def test_a_file_that_a_pattern_has_found_and_that_changes_is_not_sent(remote, deliver, sandbox) -> None:
    remote.put("in/b.bin", b"B" * MB)
    changing = during_upload("b.bin", MB, lambda: remote.put("in/b.bin", b"Y" * (MB + 1)))
    with changing, pytest.raises(SourceChanged):
        deliver(f"{remote.uri}/in/*").run()
    sandbox.assert_nothing_sent()


@pytest.mark.slow
def test_a_large_file_needs_little_memory(remote, deliver, sandbox, hook) -> None:
    content = random.Random(0).randbytes(LARGE)
    expected, large = digest(content), remote.put("in/large.bin", content)
    del content
    deliver(remote.put("in/small.bin", b"x")).run()  # imports, connections and buffers of the first delivery
    ti = deliver(large)

    with peak_memory() as peak:
        result = ti.run()

    print(f"memory: {peak[0] / MB:.0f} MB more than before for a file of {LARGE // MB} MB")
    assert peak[0] < LARGE / 2
    assert stored(sandbox, result["id"]) == {"large.bin": expected}
