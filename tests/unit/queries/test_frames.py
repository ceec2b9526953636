"""DataFrames are written as the results of queries are: exact types, missing values, zones, formulas."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import openpyxl
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbound_transfer.files.content import ContentWriter, Spool
from outbound_transfer.files.sources import normalize_files, parse_files, resolve_files
from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.queries.errors import ResultNotWritable
from outbound_transfer.queries.file_formats import FORMATS, write_result
from outbound_transfer.queries.rows import Result
from outbound_transfer.queries.values import normalize_column

LIBRARIES: list[Callable[..., Any]] = [
    lambda columns: pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()}),
    lambda columns: pl.DataFrame(columns, strict=False),
]
SUFFIXES = {suffix: one for one in FORMATS.values() for suffix in one.suffixes}
BERLIN = ZoneInfo("Europe/Berlin")


def content_of(name: str, content: Any) -> bytes:
    with Spool() as spool:
        (source,) = resolve_files({"name": name, "content": content}, spool)
        return b"".join(source.upload().body())


def written(result: Result, suffix: str) -> bytes:
    file = io.BytesIO()
    write_result(result, SUFFIXES[suffix], file)
    return file.getvalue()


VALUES = {
    "whole": st.integers(-(2**63), 2**63 - 1),
    "number": st.floats(allow_nan=False),
    "text": st.text(max_size=9),
    "bytes": st.binary(max_size=9),
    "flag": st.booleans(),
    "date": st.dates(),
    "time": st.times(),
    "moment": st.datetimes(),
    "long": st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
    "exact": st.decimals(-(10**9), 10**9, places=3),
}
#: Columns of every kind at once: a workbook takes 30 ms, whatever is in it.
COLUMNS = st.integers(0, 9).flatmap(
    lambda rows: st.fixed_dictionaries(
        {name: st.lists(st.none() | value, min_size=rows, max_size=rows) for name, value in VALUES.items()}
    )
)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("library", LIBRARIES, ids=["pandas", "polars"])
@settings(max_examples=20)
@given(columns=COLUMNS)
def test_any_values_are_written_as_those_of_a_query(library, suffix, columns) -> None:
    batch = [normalize_column(values, UTC) for values in columns.values()]
    result = Result(list(columns), [batch] if batch[0] else [])

    assert content_of(f"rows{suffix}", library(columns)) == written(result, suffix)


def test_the_types_of_pandas_lose_nothing_and_missing_values_are_empty() -> None:
    moment = datetime(2026, 3, 29, 2, 30, 1, 5, tzinfo=UTC)
    frame = pd.DataFrame(
        {
            "whole": pd.array([2**60 + 1, None], "Int64"),
            "number": [0.1, np.nan],
            "when": pd.Series([moment, pd.NaT]).dt.tz_convert(BERLIN),
            "local": pd.Series([datetime(2026, 1, 2), None]),
            "long": pd.Series([timedelta(days=2, microseconds=1), None]),
            "kind": pd.Categorical(["=1+1", None]),
            "any": [np.int64(7), pd.NA],
            "list": [[1, 2], None],
            "exact": [Decimal("1.10"), None],
            "flag": pd.array([True, None], "boolean"),
        }
    )

    assert content_of("a.csv", frame).decode().splitlines() == [
        "whole,number,when,local,long,kind,any,list,exact,flag",
        "1152921504606846977,0.1,2026-03-29T02:30:01.000005+00:00,2026-01-02T00:00:00,48:00:00.000001,'=1+1,7,"
        '"[1,2]",1.10,true',
        ",,,,,,,,,",
    ]
    table = pq.read_table(io.BytesIO(content_of("a.parquet", frame)))
    kinds = dict(zip(table.column_names, map(str, table.schema.types), strict=True))
    assert kinds["whole"] == "int64"
    assert kinds["when"] == "timestamp[us, tz=UTC]"
    assert kinds["exact"].startswith("decimal128(38, 2")
    assert table.to_pylist()[0]["when"] == moment
    assert set(table.to_pylist()[1].values()) == {None}
    sheet = openpyxl.load_workbook(io.BytesIO(content_of("a.xlsx", frame))).active
    assert sheet["F2"].value == "=1+1"
    assert sheet["F2"].data_type == "s"
    assert all(cell.value is None for cell in sheet[3])


def test_the_types_of_polars_lose_nothing_and_null_is_empty() -> None:
    frame = pl.DataFrame(
        {
            "when": [datetime(2026, 3, 29, 2, 30, tzinfo=UTC), None],
            "clock": [time(1, 2, 3), None],
            "kind": pl.Series(["a", None], dtype=pl.Categorical),
            "exact": pl.Series([Decimal("1.10"), None], dtype=pl.Decimal(38, 2)),
            "pair": [{"x": 1}, None],
            "number": [float("nan"), None],
        }
    ).with_columns(pl.col("when").dt.convert_time_zone("Europe/Berlin"))

    assert content_of("a.jsonl", frame).decode().splitlines()[0] == (
        '{"when":"2026-03-29T02:30:00Z","clock":"01:02:03","kind":"a","exact":"1.10","pair":{"x":1},"number":null}'
    )
    assert content_of("a.csv", frame).decode().splitlines()[1:] == [
        '2026-03-29T02:30:00+00:00,01:02:03,a,1.10,"{""x"":1}",nan',
        ",,,,,",
    ]


def test_an_index_is_written_if_it_has_a_name() -> None:
    rows = pd.DataFrame({"region": ["n", "s", "n"], "year": [1, 1, 2], "total": [1, 2, 3]})

    assert content_of("a.csv", rows[rows.total > 1]) == b"region,year,total\r\ns,1,2\r\nn,2,3\r\n"
    assert content_of("a.csv", rows.groupby(["region", "year"])[["total"]].sum()) == (
        b"region,year,total\r\nn,1,1\r\nn,2,3\r\ns,1,2\r\n"
    )
    of_two = rows.set_index(pd.MultiIndex.from_arrays([[1, 2, 3], list("abc")], names=[None, "letter"]))
    assert content_of("a.csv", of_two[["total"]]) == b"letter,total\r\na,1\r\nb,2\r\nc,3\r\n"


@pytest.mark.parametrize("names", [[1, 0], [1, 1], [1, None], [0, 1], [-1, -2], ["a", 0]])
def test_the_levels_of_an_index_are_taken_by_position_whatever_their_names_are(names) -> None:
    index = pd.MultiIndex.from_arrays([["x", "y"], [1, None]], names=names)
    named = [number for number, name in enumerate(names) if name is not None]

    header, *rows = content_of("a.csv", pd.DataFrame({"n": [7, 8]}, index)).decode().splitlines()

    assert header == ",".join([*(str(names[number]) for number in named), "n"])
    expected = [["x", "1.0", "7"], ["y", "", "8"]]
    assert rows == [",".join(row[number] for number in [*named, 2]) for row in expected]
    assert index.names == names


NANOSECOND = "2026-01-31T10:00:00.123456789"
TIME = datetime(2026, 1, 31, 10, 0, 0, 123456)


@pytest.mark.parametrize(
    ("cell", "plain"),
    [
        (np.datetime64(NANOSECOND, "ns"), TIME),
        (np.datetime64("1969-12-31T23:59:59.999999999", "ns"), datetime(1969, 12, 31, 23, 59, 59, 999999)),
        (np.datetime64(5, "25ps"), datetime(1970, 1, 1)),
        (np.datetime64("2026-01-31T10:00", "s"), datetime(2026, 1, 31, 10)),
        (np.datetime64("2026-01-31"), date(2026, 1, 31)),
        (np.timedelta64(90_000_001_999, "ns"), timedelta(seconds=90, microseconds=1)),
        (np.timedelta64(-5, "ns"), timedelta(microseconds=-1)),
        (np.timedelta64(5, "h"), timedelta(hours=5)),
        (np.datetime64("30000-01-01T00:00", "s"), "30000-01-01T00:00:00"),
        (np.timedelta64(5, "Y"), "5 years"),
        (np.array([NANOSECOND, "NaT"], "datetime64[ns]"), [TIME, None]),
        (np.array([[5_000, "NaT"]], "timedelta64[ns]"), [[timedelta(microseconds=5), None]]),
        (np.array(NANOSECOND, "datetime64[ns]"), TIME),
        (np.array([(NANOSECOND, 1)], [("at", "datetime64[ns]"), ("n", "i4")]), [[TIME, 1]]),
        (np.array([np.datetime64(NANOSECOND, "ns"), None], object), [TIME, None]),
        (np.ma.array([NANOSECOND] * 2, "datetime64[ns]", mask=[False, True]), [TIME, None]),
        (np.array([1.5, 2.0], "float32"), [1.5, 2.0]),
        (np.array(["a"]), ["a"]),
        (np.longdouble("1.5"), 1.5),
        (np.longdouble("nan"), None),
        (np.longdouble("-inf"), -math.inf),
        (np.array([2, 0.5], np.longdouble), [2.0, 0.5]),
        ([np.longdouble(2) ** 70], [2.0**70]),
        (np.clongdouble(1 + 2j), "(1+2j)"),
        ([pd.NaT, pd.NA, pd.Timestamp(TIME)], [None, None, TIME]),
        (pd.Series([1, None], dtype="Int64"), [1, None]),
        (pd.Series([pd.Timestamp(NANOSECOND), pd.NaT]), [TIME, None]),
        (pd.Series(range(100)), list(range(100))),
        (pl.Series(list(range(100))), list(range(100))),
        ({"s": pl.Series([TIME, None])}, {"s": [TIME, None]}),
        (pd.Categorical(["a", "b"]), ["a", "b"]),
    ],
)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_value_of_a_library_in_a_cell_is_that_of_python(cell, plain, suffix) -> None:
    cells = pd.Series([cell, "."], dtype=object)
    batches = [[normalize_column([plain, "."], UTC)]]

    assert content_of(f"a{suffix}", pd.DataFrame({"a": cells})) == written(Result(["a"], batches), suffix)


# The greatest is more than a float holds, except where a long double is one.
@pytest.mark.parametrize("text", ["0.1", str(np.finfo(np.longdouble).max)])
def test_a_long_double_keeps_its_digits(text) -> None:
    cells = pd.Series([np.longdouble(text)], dtype=object)

    assert content_of("a.csv", pd.DataFrame({"a": cells})) == f"a\r\n{text}\r\n".encode()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (pd.DataFrame({"b": range(200)}), "column 'a': a cell holds a DataFrame"),
        (pl.DataFrame({"b": range(200)}), "column 'a': a cell holds a DataFrame"),
        ([pl.LazyFrame({"b": [1]})], "column 'a': a cell holds a LazyFrame"),
        ({1: "x", "1": "y"}, "column 'a': two keys of a mapping have the same text"),
    ],
)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_cell_that_cannot_be_written_is_refused_with_its_column(cell, message, suffix) -> None:
    cells = pd.Series([cell, "."], dtype=object)

    with pytest.raises(ResultNotWritable, match=message):
        content_of(f"a{suffix}", pd.DataFrame({"a": cells}))


def test_rows_are_taken_by_position_whatever_the_index_is() -> None:
    frame = pd.DataFrame({"a": range(10_000)}, index=np.arange(10_000)[::-1] / 2)

    assert content_of("a.csv", frame).split() == [b"a", *(str(number).encode() for number in range(10_000))]


@pytest.mark.parametrize("library", LIBRARIES, ids=["pandas", "polars"])
def test_columns_with_the_names_of_attributes_are_columns(library) -> None:
    frame = library({"close": [1], "read": [2], "write": [3]})

    for content in (frame, lambda: frame):
        assert content_of("a.csv", content) == b"close,read,write\r\n1,2,3\r\n"


@pytest.mark.parametrize("library", LIBRARIES, ids=["pandas", "polars"])
def test_a_frame_without_rows_has_its_header(library) -> None:
    assert content_of("a.csv", library({"a": [], "b": []})) == b"a,b\r\n"


def test_the_same_frame_is_the_same_file_in_each_process(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": range(9000), "b": [{"x", "y", "z"}] * 9000, "c": pd.Timestamp(2026, 1, 1)})
    script = f"""
import pandas as pd
from outbound_transfer.queries.frames import frame_writer
frame = pd.DataFrame({{"a": range(9000), "b": [{{"x", "y", "z"}}] * 9000, "c": pd.Timestamp(2026, 1, 1)}})
for suffix in {list(SUFFIXES)}:
    with open("a" + suffix, "w+b") as file:
        frame_writer("a" + suffix, frame)(file)
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    for suffix in SUFFIXES:
        content = content_of(f"a{suffix}", frame)
        assert content == content_of(f"a{suffix}", frame.copy())
        assert content == (tmp_path / f"a{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_memory_does_not_grow_with_the_rows(suffix) -> None:
    def peak(rows: int) -> int:
        frame = pd.DataFrame({"a": np.arange(rows), "b": np.arange(rows) / 3})
        tracemalloc.start()
        try:
            content_of(f"a{suffix}", frame)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # loads what is loaded once
    assert peak(40_000) < peak(10_000) + 1_000_000


@pytest.mark.parametrize(
    ("name", "frame", "message"),
    [
        ("a.txt", pd.DataFrame({"a": [1]}), r"the suffix of 'a.txt' names no format \(.csv, .*\): rename the file"),
        ("a.csv", pd.DataFrame(index=[1, 2]), "the DataFrame has no columns"),
        ("a.csv", pl.DataFrame(), "the DataFrame has no columns"),
        ("a.csv", pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])), "several levels"),
        ("a.csv", pl.LazyFrame({"a": [1]}), "the content of 'a.csv' is LazyFrame"),
        ("a.csv", pd.Series([1]), "the content of 'a.csv' is Series"),
    ],
)
def test_what_is_no_table_is_refused_before_anything_is_written(name, frame, message) -> None:
    with pytest.raises(InvalidDelivery, match=message):
        parse_files([{"name": name, "content": frame}])


@pytest.mark.parametrize("library", LIBRARIES, ids=["pandas", "polars"])
def test_a_frame_without_a_name_is_refused(library) -> None:
    with pytest.raises(InvalidDelivery, match="a DataFrame needs the name of a file"):
        parse_files(library({"a.csv": [1]}))


def test_an_error_of_a_format_names_the_file() -> None:
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])

    assert content_of("a.csv", twice) == b"a,a\r\n1,2\r\n"
    with pytest.raises(ResultNotWritable, match=r"a\.jsonl: two columns are named 'a'"):
        content_of("a.jsonl", twice)


def test_a_frame_is_wrapped_once_and_shown_nowhere() -> None:
    files = [{"name": "a.csv", "content": pd.DataFrame({"hush": [date(2026, 1, 1)]})}]

    parsed = parse_files(files)

    assert parse_files(parsed) == parsed
    assert isinstance(parsed[0]["content"].value, ContentWriter)
    assert normalize_files(parsed) == normalize_files(files) == [{"name": "a.csv", "sha256": ""}]
    assert "hush" not in repr(parsed)


def test_neither_library_is_loaded_for_other_contents() -> None:
    script = """
import sys
from outbound_transfer.files.sources import parse_files
parse_files([{"name": "a.csv", "content": b"a"}])
sys.exit(bool({"pandas", "polars", "pyarrow"} & sys.modules.keys()))
"""
    subprocess.run([sys.executable, "-c", script], check=True)
