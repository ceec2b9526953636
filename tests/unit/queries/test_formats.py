"""What each format makes of a result, read back by other libraries, and what is told of a driver's errors."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl.utils.escape import unescape

from outbound_transfer.queries.errors import QueryFailed, ResultNotWritable, describe_error
from outbound_transfer.queries.export import open_cursor, write_result
from outbound_transfer.queries.formats.csv import escape_formula
from outbound_transfer.queries.formats.xlsx import MAX_CELL_LENGTH
from outbound_transfer.queries.spec import FORMATS
from outbound_transfer.queries.values import Result, normalize, normalize_column, to_text


def written(format_name: str, columns: Any, rows: Any, *, batch: int = 3, zone: Any = UTC, **options: Any) -> bytes:
    """The file of a result whose rows come in batches."""
    parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    batches = [[normalize_column(values, zone) for values in zip(*part, strict=True)] for part in parts]
    file = io.BytesIO()
    write_result(Result(columns, iter(batches)), format_name, file, **options)
    return file.getvalue()


def csv_rows(content: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content.decode(), newline="")))


def json_rows(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def sheet_rows(content: bytes, sheet: int = 0) -> list[tuple[Any, ...]]:
    return list(openpyxl.load_workbook(io.BytesIO(content)).worksheets[sheet].iter_rows(values_only=True))


TEXT = st.text(st.characters(codec="utf-8"))
#: XML has no other characters, and openpyxl gives "_x0041_" back as it is written.
OF_XML = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff_")
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-5))])
COLUMNS = {
    "text": TEXT, "day": st.dates(), "local": st.datetimes(), "clock": st.times(), "yes": st.booleans(),
    "whole": st.integers(-(2**63), 2**63 - 1),
    "exact": st.decimals(-(10**20), 10**20, places=4),
    "real": st.floats(allow_nan=False, allow_infinity=False),
    "at": st.datetimes(datetime(1900, 3, 2), datetime(9999, 12, 30), timezones=ZONES),
    "raw": st.binary(max_size=20),
    "span": st.timedeltas(timedelta(days=-1_000), timedelta(days=1_000)),
    "nested": st.lists(TEXT | st.integers(0, 99) | st.none(), max_size=3) | st.dictionaries(TEXT, TEXT, max_size=3),
}  # fmt: skip
ROWS = st.lists(st.tuples(*(st.none() | column for column in COLUMNS.values())), min_size=1, max_size=10)


@given(ROWS)
def test_json_lines_keep_every_value(rows: list[tuple[Any, ...]]) -> None:
    time_of = datetime.fromisoformat
    readers = {"exact": Decimal, "at": time_of, "local": time_of, "day": date.fromisoformat}
    for row, found in zip(rows, json_rows(written("jsonl", list(COLUMNS), rows)), strict=True):
        expected = dict(zip(COLUMNS, row, strict=True))
        for name in ("text", "whole", "real", "yes", "nested"):
            assert found[name] == expected[name]
        for name, read in readers.items():
            assert (None if found[name] is None else read(found[name])) == expected[name]


@given(ROWS)
def test_csv_keeps_every_value(rows: list[tuple[Any, ...]]) -> None:
    header, *found = csv_rows(written("csv", list(COLUMNS), rows, escape_formulas=False))
    assert header == list(COLUMNS)
    for row, cells in zip(rows, found, strict=True):
        for value, cell in zip(row, cells, strict=True):
            assert cell == to_text(normalize(value, UTC))


@settings(max_examples=20)
@given(ROWS)
def test_parquet_keeps_every_value(rows: list[tuple[Any, ...]]) -> None:
    table = pq.read_table(io.BytesIO(written("parquet", list(COLUMNS), rows)))
    for number, name in enumerate(COLUMNS):
        expected = [row[number] for row in rows]
        if name in ("span", "nested"):
            expected = [None if value is None else to_text(normalize(value, UTC)) for value in expected]
        assert table[name].to_pylist() == expected


@settings(max_examples=20)
@given(st.lists(st.tuples(st.text(OF_XML, min_size=1), st.integers(-(10**14), 10**14)), min_size=1, max_size=10))
def test_a_workbook_keeps_texts_and_numbers(rows: list[tuple[Any, ...]]) -> None:
    assert sheet_rows(written("xlsx", ["text", "number"], rows))[1:] == rows


@pytest.mark.parametrize("format_name", sorted(set(FORMATS.values())))
@settings(max_examples=20)
@given(rows=ROWS)
def test_the_same_rows_make_the_same_bytes(format_name: str, rows: list[tuple[Any, ...]]) -> None:
    first = written(format_name, list(COLUMNS), rows)
    assert written(format_name, list(COLUMNS), rows) == first
    if format_name in ("csv", "jsonl"):  # whatever the batches are
        assert written(format_name, list(COLUMNS), rows, batch=1) == first


class LargeObject:
    """A value that its driver reads apart."""

    def read(self) -> bytes:
        return b"abc"


class LongDouble:
    """A number of numpy that Python has no type for."""

    def tolist(self) -> LongDouble:
        return self

    def __str__(self) -> str:
        return "0.1"


class Array:
    """An array of numpy, as some drivers return one."""

    def tolist(self) -> list[Any]:
        return [1, LongDouble()]


@pytest.mark.parametrize(
    ("value", "text", "as_json"),
    [
        (None, "", None), (True, "true", True), (-1, "-1", -1), (2**70, str(2**70), 2**70), (1.5, "1.5", 1.5),
        (math.inf, "inf", None), (Decimal("NaN"), "nan", None), (Decimal("-Infinity"), "-inf", None),
        ([Decimal("NaN")], '["NaN"]', ["NaN"]), (Decimal("1E+3"), "1000", "1000"), (Decimal("0.10"), "0.10", "0.10"),
        (Decimal("-12345678901234567890.123456789"), *["-12345678901234567890.123456789"] * 2),
        (date(2026, 1, 31), *["2026-01-31"] * 2), (datetime(2026, 1, 31, 12), *["2026-01-31T12:00:00"] * 2),
        (datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), *["2026-01-31T10:00:00+00:00"] * 2),
        (time(1, 2, 3), *["01:02:03"] * 2),
        (timedelta(days=1, hours=2, microseconds=5), *["1 day, 2:00:00.000005"] * 2),
        (b"\x00\xff", *["AP8="] * 2), (memoryview(b"\x00\xff"), *["AP8="] * 2), (bytearray(b"\x00\xff"), *["AP8="] * 2),
        (uuid.UUID(int=5), *["00000000-0000-0000-0000-000000000005"] * 2), ([1, (2,)], "[1,[2]]", [1, [2]]),
        ({"b", "a"}, '["a","b"]', ["a", "b"]), (LargeObject(), "YWJj", "YWJj"), (Array(), '[1,"0.1"]', [1, "0.1"]),
        ({"a": ("b", "a"), 1: None}, '{"a":["b","a"],"1":null}', {"a": ["b", "a"], "1": None}),
    ],
)  # fmt: skip
def test_the_text_of_each_type(value: Any, text: str, as_json: Any) -> None:
    # Beside another value: an empty cell alone in its row is quoted.
    assert csv_rows(written("csv", ["a", "b"], [(value, 0)]))[1] == [text, "0"]
    assert json_rows(written("jsonl", ["a"], [(value,)])) == [{"a": as_json}]


def test_timestamps_are_converted_to_the_zone_that_is_asked_for() -> None:
    rows, zone = [(datetime(2026, 7, 1, 12, tzinfo=UTC), datetime(2026, 7, 1, 12))], ZoneInfo("Europe/Berlin")
    in_csv = ["2026-07-01T14:00:00+02:00", "2026-07-01T12:00:00"]
    in_sheet = (datetime(2026, 7, 1, 14), datetime(2026, 7, 1, 12))
    assert csv_rows(written("csv", ["a", "b"], rows, zone=zone))[1] == in_csv
    assert sheet_rows(written("xlsx", ["a", "b"], rows, zone=zone))[1] == in_sheet


ESCAPED = (
    "=1+1", "+SUM(A1)", "-2+3", "@cmd", " =1+1", "\t1", "\r1", "\n1", "\uff1d1", "-", "+a1", "\ufeff=1", "\x00=1",
)  # fmt: skip
#: Behind another separator. The text after "+44" may go on with the number: -1,2+cmd|…
ESCAPED_INSIDE = {
    "Miller;=1+1;x": "Miller;'=1+1;x", "a\t=cmd|' /C calc'!A0": "a\t'=cmd|' /C calc'!A0", "=1;=2": "'=1;'=2",
    "a\n@b\r +c": "a\n'@b\r' +c", 'a;"=1+1;': "a;'\"=1+1;", "a;\ufeff=1": "a;'\ufeff=1",
    "a;-1;+44;b-c": "a;'-1;'+44;b-c",
}  # fmt: skip


@pytest.mark.parametrize("text", ESCAPED)
def test_a_formula_is_escaped(text: str) -> None:
    assert escape_formula(text) == f"'{text}"
    assert csv_rows(written("csv", [text], [(text,)])) == [[f"'{text}"], [f"'{text}"]]
    assert csv_rows(written("csv", [text], [(text,)], escape_formulas=False)) == [[text], [text]]


def test_a_formula_behind_another_separator_is_escaped_and_a_number_is_none() -> None:
    for text, escaped in ESCAPED_INSIDE.items():
        assert csv_rows(written("csv", ["a", "b"], [(0, text)]))[1] == ["0", escaped]
    assert csv_rows(written("csv", ["a"], [({"a": "b;=1"},)]))[1] == ["""{"a":"b;'=1"}"""]
    for text in ("-1", "+44", "-1.5", "-1,234.5", "+1e5", "a=1", "", "'=1", "x-y"):
        assert escape_formula(text) == text
    for value in (b"\xf8\xff", -math.inf, Decimal("-Infinity")):  # in a column with texts
        assert csv_rows(written("csv", ["a"], [(value,), ("=1",)]))[1:] == [[to_text(normalize(value, UTC))], ["'=1"]]


HOSTILE = st.text(st.sampled_from(" \"';,\t\r\n\ufeff=+-@|a1"))


@given(st.lists(HOSTILE, min_size=2, max_size=2, unique_by=str.casefold), st.sampled_from(",;\t"))
def test_no_spreadsheet_finds_a_formula(texts: list[str], separator: str) -> None:
    content = io.StringIO(written("csv", texts, [texts]).decode("utf-8-sig"), newline="")
    for row in csv.reader(content, delimiter=separator):
        for cell in row:
            assert cell.lstrip()[:1] not in ("=", "+", "-", "@") or re.match(r"\s*[+-]1+([.,]1+)*($|[\",;\s])", cell)


def test_a_workbook_has_real_dates_and_texts_that_compute_nothing() -> None:
    rows = [(date(2026, 1, 31), datetime(2026, 1, 31, 12), time(1, 2), "=1+1", "http://a.example")]
    workbook = openpyxl.load_workbook(io.BytesIO(written("xlsx", list("abcde"), rows)))
    assert workbook.properties.created == datetime(2000, 1, 1), "or the same rows made other bytes later"
    cells = list(workbook.active[2])
    assert [cell.is_date for cell in cells] == [True, True, True, False, False]
    assert [cell.data_type for cell in cells[3:]] == ["s", "s"]
    assert cells[4].hyperlink is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (10**15 - 1, 10**15 - 1), (10**15, "1000000000000000"), (Decimal("1234567890123.45"), 1234567890123.45),
        (math.nan, "nan"), (math.inf, "inf"), (True, True),
        *((Decimal(exact), exact) for exact in ("1.0000000000000000000000000000000001", "12345678901234.56")),
        (Decimal("NaN"), "nan"), (Decimal("sNaN"), "nan"), (Decimal("1e-310"), f"{Decimal('1e-310'):f}"),
        (date(1899, 12, 31), "1899-12-31"), (datetime(1, 1, 1), "0001-01-01T00:00:00"), (timedelta(hours=1), "1:00:00"),
        (1.7976931348623157e308, 1.7976931348623157e308), (5e-324, "5e-324"), ("<r>a</r> b", "<r>a</r> b"),
        (datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(9999, 12, 31, 23, 59, 59, 999000)),
        (time(23, 59, 59, 999999), time(23, 59, 59, 999000)),
    ],
)  # fmt: skip
def test_a_workbook_rounds_and_shifts_nothing(value: Any, expected: Any) -> None:
    assert sheet_rows(written("xlsx", ["a"], [(value,)]))[1] == (expected,)


@given(st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False))
def test_a_workbook_keeps_all_digits_of_a_float(value: float) -> None:
    assert sheet_rows(written("xlsx", ["a"], [(value,)]))[1] == (value,)


@given(st.datetimes(datetime(1900, 3, 1)) | st.times())
def test_a_workbook_cuts_a_time_to_the_millisecond_and_shows_it(value: datetime | time) -> None:
    cell = openpyxl.load_workbook(io.BytesIO(written("xlsx", ["a"], [(value,)]))).active["A2"]
    assert cell.value == value.replace(microsecond=value.microsecond // 1000 * 1000)
    assert cell.number_format.endswith("ss.000") == (cell.value.microsecond > 0)


@pytest.mark.parametrize("text", ["_x0041_", "_x0041_ and _x005F_\x01", "\x01\r\n\t", "\uffff", " a & <b/> "])
def test_a_workbook_escapes_a_text_once(text: str) -> None:
    # openpyxl decodes the XML, and leaves the escapes of XLSX to its caller.
    assert [[unescape(cell) for cell in row] for row in sheet_rows(written("xlsx", [text], [(text,)]))] == [[text]] * 2


@pytest.mark.parametrize("character", ["x", "😀"])
def test_a_text_that_a_cell_would_cut_is_refused(character: str) -> None:
    fits = character * (MAX_CELL_LENGTH * 2 // len(character.encode("utf-16-le")))
    assert sheet_rows(written("xlsx", ["a"], [(fits,)]))[1] == (fits,)
    with pytest.raises(ResultNotWritable, match="column 'a' has a text that a cell"):
        written("xlsx", ["a"], [(fits + character,)])


def test_rows_that_do_not_fit_into_a_sheet_continue_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbound_transfer.queries.formats.xlsx.MAX_SHEET_ROWS", 4)
    content = written("xlsx", ["a"], [(number,) for number in range(8)])
    sheets = [[row[0] for row in sheet_rows(content, number)] for number in range(3)]
    assert sheets == [["a", 0, 1, 2], ["a", 3, 4, 5], ["a", 6, 7]]
    with pytest.raises(ResultNotWritable, match="at most 16,384 columns"):
        written("xlsx", [f"a{number}" for number in range(16_385)], [(1,) * 16_385])


@pytest.mark.parametrize(
    ("format_name", "values", "said"),
    [
        *((each, ["secret \ud800"], "cannot be encoded") for each in sorted(set(FORMATS.values()))),
        *(("xlsx", [text], "codes of a workbook") for text in ("<r>a\n</r>", "<r></r>", "a\n_x0041_x0042_ b")),
        ("csv", [object()], "a value of type object has no text"),
        ("parquet", [2**60 + 1, None, None, 1.5], "column 'a' has integers and floats"),
    ],
)
def test_a_value_that_a_format_cannot_hold_is_refused_but_not_quoted(format_name: str, values: Any, said: str) -> None:
    with pytest.raises(ResultNotWritable, match=said) as caught:
        written(format_name, ["a"], [(value,) for value in values])
    assert "secret" not in str(caught.value)
    if format_name == "xlsx":
        with pytest.raises(ResultNotWritable, match=said):
            written("xlsx", values, [])


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([None, None, None, 1], pa.int64()), ([None] * 4, pa.string()), ([1, 2, 3, 2.5], pa.float64()),
        *(([1, 2, 3, other], pa.string()) for other in ("four", 2**64)), ([1, "two"], pa.string()),
        ([Decimal("1.5"), None, Decimal("2.25"), Decimal(7)], pa.decimal128(38, 2)), ([True, 1], pa.string()),
        ([Decimal("1e30"), None, None, Decimal("1e-20")], pa.string()), ([Decimal("NaN"), Decimal(1)], pa.string()),
        ([datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)], pa.string()), ([b"YQ==", "b"], pa.string()),
        ([time(1, tzinfo=UTC)], pa.string()),
    ],
)  # fmt: skip
def test_a_column_has_the_type_of_all_of_its_values(values: list[Any], type_: pa.DataType) -> None:
    table = pq.read_table(io.BytesIO(written("parquet", ["a"], [(value,) for value in values])))
    assert table.schema.field("a").type == type_
    texts = [None if value is None else to_text(normalize(value, UTC)) for value in values]
    expected = texts if type_ == pa.string() else values
    assert table["a"].to_pylist() == expected


def test_the_second_driver_of_mysql_is_refused_and_the_remedy_named() -> None:
    connection = type("Connection", (), {"__module__": "mysql.connector.connection"})()
    with pytest.raises(QueryFailed, match="uses mysqlclient: remove the field client"):
        open_cursor(connection)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((1146, "Table 'a' doesn't exist\nb"), ("ValueError 1146", "Table 'a' doesn't exist")),  # of MySQL
        (({"S": "ERROR", "C": "22P02", "M": "no number", "D": "Ann"}, "Ann"), ("ValueError 22P02", "no number")),
        (("no number",), ("ValueError", "no number")), (("Ann", "a"), ("ValueError", "('Ann', 'a')")),
        *((nothing, ("ValueError", "")) for nothing in ((), ({"D": "Ann"},))),
    ],
)  # fmt: skip
def test_of_an_error_are_told_its_code_and_the_first_line(arguments: tuple[Any, ...], told: tuple[str, str]) -> None:
    assert describe_error(ValueError(*arguments)) == told
