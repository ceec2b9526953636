"""DataFrames of pandas and polars as results, so that they are written as the results of queries are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from typing import Any, BinaryIO, Final

from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.queries.errors import ResultNotWritable
from outbound_transfer.queries.file_formats import format_of, write_result
from outbound_transfer.queries.foreign_values import is_of
from outbound_transfer.queries.rows import Batch, Result
from outbound_transfer.queries.values import normalize_column

#: Rows of a batch: a frame's values are objects of Python no longer than its batch is written.
_BATCH_ROWS: Final = 4096


def frame_writer(name: str, frame: Any) -> Callable[[BinaryIO], None]:
    """Return a function that writes a frame into a file, in the format that the suffix of the name says.

    :param name: of the file.
    :raises InvalidDelivery: the suffix names no format, or the frame's columns cannot be those of a file.
    """
    file_format, columns = format_of(name, None, advice="rename the file"), _columns_of(name, frame)

    def write(file: BinaryIO) -> None:
        try:
            write_result(Result(columns, _batches_of(columns, frame)), file_format, file)
        except ResultNotWritable as error:
            raise ResultNotWritable(f"{name}: {error}") from None

    return write


def _is_pandas(frame: object) -> bool:
    return is_of("pandas", "DataFrame", frame)


def _columns_of(name: str, frame: Any) -> list[str]:
    """Return the names of what is written: the named levels of an index of pandas, and the columns."""
    if _is_pandas(frame) and frame.columns.nlevels > 1:
        raise InvalidDelivery(f"{name!r:.300}: the columns of the DataFrame have several levels: give each one name")
    columns = [*(str(frame.index.names[level]) for level in _named_levels(frame)), *map(str, frame.columns)]
    if not columns:
        raise InvalidDelivery(f"{name!r:.300}: the DataFrame has no columns")
    return columns


def _named_levels(frame: Any) -> list[int]:
    """Return which levels of the index are written. An index without a name only counts rows."""
    names = frame.index.names if _is_pandas(frame) else ()
    return [level for level, name in enumerate(names) if name is not None]


def _batches_of(names: list[str], frame: Any) -> Iterator[Batch]:
    # By position: a frame of pandas itself may be sliced by the labels of its index.
    rows, read = (frame.iloc, _read_pandas) if _is_pandas(frame) else (frame, _read_polars)
    for start in range(0, len(frame), _BATCH_ROWS):
        columns = read(rows[start : start + _BATCH_ROWS])
        yield [_normalized(name, values) for name, values in zip(names, columns, strict=True)]


def _normalized(name: str, values: list[Any]) -> Sequence[Any]:
    """:raises ResultNotWritable: a value cannot be written; the text names the column."""
    try:
        return normalize_column(values, UTC)
    except ResultNotWritable as error:
        raise ResultNotWritable(f"column {name!r:.100}: {error}") from None


def _read_pandas(part: Any) -> list[list[Any]]:
    index = part.index.set_names([None] * part.index.nlevels)  # a number would be a name first, and then a position
    indexes = [index.get_level_values(level) for level in _named_levels(part)]
    columns = [part.iloc[:, number] for number in range(part.shape[1])]  # two may have one name
    return [_without_missing(values) for values in (*indexes, *columns)]


def _without_missing(values: Any) -> list[Any]:
    """Return the values of a Series or an Index, with None for what pandas takes for missing: NaN, NaT and NA."""
    return [None if missing else value for value, missing in zip(values.tolist(), values.isna(), strict=True)]


def _read_polars(part: Any) -> list[list[Any]]:
    return [column.to_list() for column in part.get_columns()]
