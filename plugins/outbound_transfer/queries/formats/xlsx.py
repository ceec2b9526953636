"""XLSX, by XlsxWriter: a row goes to the disk as soon as the next one begins."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, date, datetime, time
from decimal import Decimal
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final

from xlsxwriter.workbook import Workbook
from xlsxwriter.worksheet import Worksheet

from outbound_transfer.queries.errors import ResultNotWritable
from outbound_transfer.queries.values import Result, to_text

#: Rows of a sheet, its header included; columns of a sheet; characters of a cell, in UTF-16.
MAX_SHEET_ROWS: Final = 1_048_576
MAX_COLUMNS: Final = 16_384
MAX_CELL_LENGTH: Final = 32_767

#: A workbook's days are counted from 1900, and that year has a 29th of February that never was.
_FIRST_MONTH: Final = (1900, 3)

#: How dates and times are shown; without its ".000", a fraction of a second would round them up, to the next day even.
_FORMATS: Final = {datetime: "yyyy-mm-dd hh:mm:ss", date: "yyyy-mm-dd", time: "hh:mm:ss"}

#: What the library writes as another text: what it takes for XML, and escapes that share an underscore.
_CHANGED: Final = re.compile("<r>.*</r>|.*_x[0-9a-fA-F]{4}_x[0-9a-fA-F]{4}_.*", re.DOTALL)


class _AllDigits(float):
    """A float that is written with all of its digits: the library formats numbers with 16, and some have 17."""

    def __format__(self, specification: str, /) -> str:
        return repr(self)


def write(result: Result, file: BinaryIO) -> None:
    """Write a result as a workbook; what does not fit into a sheet goes on in the next, under the same header.

    Texts are texts, never formulas or links. A timestamp shows the time of its zone. Dates and times keep milliseconds.
    What a spreadsheet would change is written as text.
    """
    if len(result.columns) > MAX_COLUMNS:
        raise ResultNotWritable(f"a sheet has at most {MAX_COLUMNS:,} columns, not {len(result.columns):,}")
    with TemporaryDirectory() as folder, ExitStack() as stack:  # the library leaves its files after an error
        modes = {"constant_memory": True, "tmpdir": folder, "use_zip64": True, "remove_timezone": True}
        workbook = Workbook(file, modes)
        workbook.set_properties({"created": datetime(2000, 1, 1, tzinfo=UTC)})  # the same result makes the same bytes
        header = workbook.add_format({"bold": True})
        styles = {
            (kind, has_fraction): workbook.add_format({"num_format": pattern + ".000" * has_fraction})
            for kind, pattern in _FORMATS.items()
            for has_fraction in (False, True)
        }

        def new_sheet() -> Worksheet:
            sheet = workbook.add_worksheet()
            stack.callback(sheet.row_data_fh.close)  # without packing what fails
            sheet.freeze_panes(1, 0)
            sheet.set_column(0, len(result.columns) - 1, 24)  # fits milliseconds, as a date that is cut shows nothing
            for column, name in enumerate(result.columns):
                sheet.write_string(0, column, _checked(name, name), header)
            return sheet

        sheet = new_sheet()
        for number, values in enumerate(values for batch in result.batches for values in zip(*batch, strict=True)):
            row = number % (MAX_SHEET_ROWS - 1) + 1
            if number and row == 1:
                sheet = new_sheet()
            for column, value in enumerate(values):
                if value is not None:
                    _write_cell(sheet, row, column, value, styles, result.columns[column])
        workbook.close()


def _write_cell(sheet: Worksheet, row: int, column: int, value: Any, styles: Mapping[Any, Any], name: str) -> None:
    kind = type(value)
    if kind is bool:
        sheet.write_boolean(row, column, value)
    elif kind in (int, float, Decimal) and _keeps_number(value):
        sheet.write_number(row, column, _AllDigits(value) if kind is float else value)
    elif kind is time or (kind in (date, datetime) and (value.year, value.month) >= _FIRST_MONTH):
        micros = getattr(value, "microsecond", 0)
        if micros:  # as a spreadsheet shows milliseconds
            value = value.replace(microsecond=micros - micros % 1000)
        sheet.write_datetime(row, column, value, styles[kind, micros >= 1000])
    else:
        sheet.write_string(row, column, _checked(to_text(value), name))


def _keeps_number(value: Any) -> bool:  # a spreadsheet has 15 digits
    is_float = isinstance(value, float)
    if value and not sys.float_info.min <= abs(value) < (math.inf if is_float else 10**15):
        return False
    return is_float or value == Decimal(f"{Decimal(value):.15g}")


def _checked(text: str, name: str) -> str:
    if len(text.encode("utf-16-le")) // 2 > MAX_CELL_LENGTH or _CHANGED.fullmatch(text):
        raise ResultNotWritable(
            f"column {name!r:.100} has a text that a cell of a workbook cuts or changes (of over {MAX_CELL_LENGTH:,} "
            "characters, or with codes of a workbook): convert it in the query, or deliver CSV, JSON Lines or Parquet"
        )
    return text
