"""A delivered file has exactly its source's name, or is refused before anything is created."""

from __future__ import annotations

import os
import unicodedata

import pytest

from outbound_transfer.exceptions import InvalidDelivery
from support.airflow_names import AirflowFailException
from support.deliveries import digest

#: Those that a header, a pattern or a file system could change; what any name becomes, units show.
KEPT = [
    'double "quotes"; filename=evil.txt',
    "filename*=UTF-8''evil.txt",
    "50% %41 %0D%0A %.txt",
    "question? hash# star* [a-z].txt",
    " ..spaces around ",
    unicodedata.normalize("NFD", "Malm\u00f6 \u00e9.txt"),
    "fullwidth\uff0fsolidus\uff3c.txt",
    "\U0001f4e6" * 63 + "xyz",
]


#: Names that are refused, with the word of the reason.
REFUSED = {
    "back\\slash.txt": "separator",
    "carriage\r\nX-Evil: 1": "control",
    "escape\x1b[31m": "control",
    "lone surrogate \udcff.txt": "Unicode",
    "   ": "empty",
}


def as_one_word(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode()[:40]


def test_every_name_that_can_be_kept_is_kept_exactly(deliver, sandbox, stored, tmp_path) -> None:
    for name in KEPT:
        (tmp_path / name).write_bytes(name.encode())

    result = deliver(*(str(tmp_path / name) for name in KEPT)).run()

    assert stored(result["id"]) == {name: digest(name.encode()) for name in KEPT}


@pytest.mark.parametrize(("name", "reason"), REFUSED.items(), ids=map(as_one_word, REFUSED))
@pytest.mark.parametrize("way", ["path", "glob", "mapping"])
def test_a_name_that_cannot_be_kept_creates_nothing(deliver, sandbox, tmp_path, name, reason, way) -> None:
    (tmp_path / "a.txt").write_bytes(b"a")
    os.close(os.open(os.path.join(os.fsencode(tmp_path), os.fsencode(name)), os.O_CREAT))
    files = {
        "path": str(tmp_path / name),
        "glob": f"{tmp_path}/{'.*' if name.startswith('.') else '*'}",
        "mapping": {"path": str(tmp_path / "a.txt"), "name": name},
    }

    with pytest.raises((AirflowFailException, InvalidDelivery), match=reason) as refusal:
        deliver(files[way]).run()  # a name in the Dag file is refused when that is parsed

    assert sandbox.requests() == []
    assert str(refusal.value).isprintable(), "the log shows the name, and obeys nothing in it"


def test_names_that_differ_by_directory_alone_create_nothing(deliver, sandbox, tmp_path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "report.txt").write_text(folder)
    with pytest.raises(AirflowFailException, match=r"one/report\.txt.*two/report\.txt"):
        deliver(f"{tmp_path}/*/report.txt").run()
    assert sandbox.requests() == []


def test_names_that_differ_by_directory_alone_pass_once_renamed(deliver, stored, tmp_path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "report.txt").write_text(folder)
    second = {"path": str(tmp_path / "two/report.txt"), "name": "report (2).txt"}

    result = deliver(str(tmp_path / "one/report.txt"), second).run()

    assert stored(result["id"]) == {"report.txt": digest(b"one"), "report (2).txt": digest(b"two")}
