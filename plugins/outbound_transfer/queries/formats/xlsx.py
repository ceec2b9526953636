"""XLSX, by XlsxWriter: a row goes to the disk as soon as the next one begins."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from outbound_transfer.queries.errors import ResultNotWritable
from outbound_transfer.queries.values import Result, encodable_texts, to_text

if TYPE_CHECKING:
    from xlsxwriter.format import Format
    from xlsxwriter.workbook import Workbook
    from xlsxwriter.worksheet import Worksheet

    #: By the type of a value, and whether it has a fraction of a second.
    _Styles = Mapping[tuple[type, bool], Format]

#: Rows of a sheet, its header included; columns of a sheet; characters of a cell, in UTF-16.
MAX_SHEET_ROWS: Final = 1_048_576
MAX_COLUMNS: Final = 16_384
MAX_CELL_LENGTH: Final = 32_767

#: Digits that a spreadsheet keeps of any number.
_MAX_DIGITS: Final = 15

#: A spreadsheet takes a smaller number for 0.
_MIN_NUMBER: Final = sys.float_info.min

#: A workbook's days are counted from 1900, and that year has a 29th of February that never was.
_FIRST_DAY: Final = date(1900, 3, 1)

#: So that the same result makes the same bytes.
_CREATED: Final = datetime(2000, 1, 1, tzinfo=UTC)

#: The day after its last, counted from the first.
_DAYS: Final = timedelta(days=2_958_466)

#: How dates and times are shown; without its ".000", a fraction of a second would round them up, to the next day even.
_FORMATS: Final = {
    datetime: "yyyy-mm-dd hh:mm:ss",
    date: "yyyy-mm-dd",
    time: "hh:mm:ss",
    timedelta: "[h]:mm:ss",
}

#: What the library writes as another text: what it takes for XML, and escapes that share an underscore.
_CHANGED: Final = re.compile("<r>.*</r>|.*_x[0-9a-fA-F]{4}_x[0-9a-fA-F]{4}_.*", re.DOTALL)

#: Of a column, in characters: those of a timestamp with milliseconds, as a date that is cut shows nothing.
_WIDTH: Final = 24


def write(result: Result, file: BinaryIO, *, max_sheet_rows: int = MAX_SHEET_ROWS) -> None:
    """Write a result as a workbook; what does not fit into a sheet goes on in the next, under the same header.

    Texts are texts, never formulas or links. A cell has no zone, so a timestamp shows the time of its zone. Dates and
    times keep milliseconds. An integer or decimal of more than 15 digits is written as text, as a spreadsheet would
    round it, and so is what is beyond a workbook's numbers and days.

    :param max_sheet_rows: of a sheet, its header included.
    :raises ResultNotWritable: a text does not fit into a cell as it is, or there are too many columns.
    """
    from xlsxwriter.workbook import Workbook

    if len(result.columns) > MAX_COLUMNS:
        raise ResultNotWritable(f"a sheet has at most {MAX_COLUMNS:,} columns, not {len(result.columns):,}")
    with TemporaryDirectory() as folder:  # the library leaves its files if it does not come to their end
        workbook = Workbook(
            file, {"constant_memory": True, "tmpdir": folder, "use_zip64": True, "remove_timezone": True}
        )
        workbook.set_properties({"created": _CREATED})
        styles = {
            (kind, has_fraction): workbook.add_format({"num_format": pattern + ".000" * has_fraction})
            for kind, pattern in _FORMATS.items()
            for has_fraction in (False, True)
        }
        try:
            _write_sheets(workbook, result, styles, max_sheet_rows)
        except BaseException:
            for sheet in workbook.worksheets():
                sheet.row_data_fh.close()  # without packing millions of rows for nothing
            raise
        workbook.close()


def _write_sheets(workbook: Workbook, result: Result, styles: _Styles, max_sheet_rows: int) -> None:
    header = workbook.add_format({"bold": True})
    sheet, row = _new_sheet(workbook, result.columns, header), 1
    for batch in result.batches:
        for values in zip(*batch, strict=True):
            if row == max_sheet_rows:
                sheet, row = _new_sheet(workbook, result.columns, header), 1
            for column, value in enumerate(values):
                if value is not None:
                    _write_cell(sheet, row, column, value, styles, result.columns[column])
            row += 1


def _new_sheet(workbook: Workbook, columns: Sequence[str], header: Format) -> Worksheet:
    sheet = workbook.add_worksheet()
    sheet.freeze_panes(1, 0)
    sheet.set_column(0, len(columns) - 1, _WIDTH)
    for number, name in enumerate(columns):
        sheet.write_string(0, number, _checked(name, name), header)
    return sheet


def _write_cell(sheet: Worksheet, row: int, column: int, value: Any, styles: _Styles, name: str) -> None:
    kind = type(value)
    if not _KEEPS.get(kind, _never)(value):
        sheet.write_string(row, column, _checked(to_text(value), name))
    elif kind in _FORMATS:
        _write_time(sheet, row, column, value, styles)
    elif kind is bool:
        sheet.write_boolean(row, column, value)
    else:
        sheet.write_number(row, column, _AllDigits(value) if kind is float else value)  # a Decimal by its digits


class _AllDigits(float):
    """A float that is written with all of its digits: the library formats numbers with 16, and some have 17."""

    def __format__(self, specification: str, /) -> str:
        return repr(self)


def _write_time(sheet: Worksheet, row: int, column: int, value: Any, styles: _Styles) -> None:
    """Write a date, time or duration with the milliseconds that a spreadsheet shows; what is below is cut off."""
    micros = value.microseconds if isinstance(value, timedelta) else getattr(value, "microsecond", 0)
    millis = micros // 1000 * 1000
    if isinstance(value, timedelta):
        value -= timedelta(microseconds=micros - millis)
    elif micros:
        value = value.replace(microsecond=millis)
    sheet.write_datetime(row, column, value, styles[type(value), millis > 0])


def _never(_: Any) -> bool:
    return False


def _keeps_digits(number: Decimal) -> bool:
    if number and not _MIN_NUMBER <= abs(number) < 10**_MAX_DIGITS:
        return False
    return len("".join(map(str, number.as_tuple().digits)).strip("0")) <= _MAX_DIGITS


#: Whether a spreadsheet keeps a value as it is, by the types that it has: of a number, all digits.
_KEEPS: Final[Mapping[type, Callable[[Any], bool]]] = {
    bool: lambda _: True,
    int: lambda value: abs(value) < 10**_MAX_DIGITS,
    float: lambda value: value == 0 or _MIN_NUMBER <= abs(value) < math.inf,
    Decimal: _keeps_digits,
    datetime: lambda value: value.date() >= _FIRST_DAY,
    date: lambda value: value >= _FIRST_DAY,
    time: lambda value: value.tzinfo is None,
    timedelta: lambda value: timedelta() <= value < _DAYS,
}


def _checked(text: str, name: str) -> str:
    """Return a text that fits into a cell.

    :raises ResultNotWritable: it would be cut or changed, or cannot be encoded.
    """
    length = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if length > MAX_CELL_LENGTH:
        raise ResultNotWritable(
            f"column {name!r:.100} has a text of {length:,} characters, and a cell of a workbook holds "
            f"{MAX_CELL_LENGTH:,}: shorten it in the query, or deliver CSV, JSON Lines or Parquet"
        )
    if _CHANGED.fullmatch(text):
        raise ResultNotWritable(
            f"column {name!r:.100} has a text with codes of a workbook, which would show it as another: deliver CSV, "
            "JSON Lines or Parquet"
        )
    with encodable_texts():
        text.encode()
    return text
