"""Parquet, by Arrow: exact types, found from all values of a column before the first is written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import islice
from types import NoneType
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from outbound_transfer.queries.errors import ResultNotWritable
from outbound_transfer.queries.values import Result, encodable_texts, to_text

#: Batches of a row group: one for each would make a file of a million rows a sixth larger.
_GROUP_BATCHES: Final = 8

#: The type of values by theirs in Python, of times with whether they have a zone; None for Arrow's choice.
_TYPES: Final[Mapping[frozenset[Any], pa.DataType | None]] = {
    frozenset(): pa.null(),
    frozenset({(datetime, True)}): pa.timestamp("us", tz="UTC"),
    frozenset({(datetime, False)}): pa.timestamp("us"),
    frozenset({(time, False)}): None,
    frozenset({int, float}): None,
    **{frozenset({kind}): None for kind in (bool, int, float, str, bytes, date, Decimal)},
}


def write(result: Result, file: BinaryIO) -> None:
    """Write a result as Parquet, compressed with Snappy.

    A driver does not say what a column holds, and a batch may hold nothing but NULLs. So all batches are first put into
    a temporary file, in Arrow's own format, each with the types of its values.

    :raises ResultNotWritable: integers and floats of a column have no common type that keeps their digits.
    """
    with tempfile.TemporaryFile() as spool:
        types = [{pa.null()} for _ in result.columns]
        for batch in result.batches:
            with encodable_texts():
                arrays = [_to_array(column) for column in batch]
            for seen, array in zip(types, arrays, strict=True):
                seen.add(array.type)
            _append(spool, arrays)
        spool.seek(0)
        schema = pa.schema(list(zip(result.columns, map(_common_type, types), strict=True)))
        with pq.ParquetWriter(file, schema, compression="snappy") as writer:
            tables = (_cast(arrays, schema) for arrays in _read(spool))
            while group := list(islice(tables, _GROUP_BATCHES)):
                writer.write_table(pa.concat_tables(group))


def _to_array(values: Sequence[Any]) -> pa.Array:
    """Return values as an array of their type; as texts if they have none in common, or Arrow has none for them."""
    kinds: frozenset[Any] = frozenset(map(type, values)) - {NoneType}
    if kinds in (frozenset({datetime}), frozenset({time})):
        kinds = frozenset((type(value), value.tzinfo is not None) for value in values if value is not None)
    try:
        return pa.array(values, _TYPES[kinds])
    except (KeyError, pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return _texts(values)


def _texts(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else to_text(value) for value in values], pa.string())


def _common_type(types: set[pa.DataType]) -> pa.DataType:
    """Return the type of a column; text if it holds only NULLs, or values without a common type."""
    known = types - {pa.null()}
    decimals = set(filter(pa.types.is_decimal, known))
    if decimals and known - decimals <= {pa.int64()}:
        return _decimal_type(decimals | {pa.decimal128(19, 0) for _ in known - decimals})
    if known == {pa.int64(), pa.float64()}:
        return pa.float64()
    return known.pop() if len(known) == 1 else pa.string()


def _decimal_type(decimals: Iterable[pa.DataType]) -> pa.DataType:
    """Return a decimal of the most digits, so that the type does not change with the values of the day."""
    scale = max(one.scale for one in decimals)
    precision = scale + max(one.precision - one.scale for one in decimals)
    if precision <= 38:
        return pa.decimal128(38, scale)
    return pa.decimal256(76, scale) if precision <= 76 else pa.string()


def _append(spool: Any, arrays: Sequence[pa.Array]) -> None:
    """Write a batch as an Arrow stream of its own: each may have other types."""
    batch = pa.record_batch(arrays, names=[str(number) for number in range(len(arrays))])
    with pa.ipc.new_stream(spool, batch.schema) as stream:
        stream.write_batch(batch)


def _read(spool: Any) -> Iterator[Sequence[pa.Array]]:
    while True:
        try:
            stream = pa.ipc.open_stream(spool)
        except pa.ArrowInvalid:  # there is no further one
            return
        for batch in stream:
            yield batch.columns


def _cast(arrays: Sequence[pa.Array], schema: pa.Schema) -> pa.Table:
    columns = [_cast_column(array, field) for array, field in zip(arrays, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast_column(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type == field.type:
        return array
    if field.type == pa.string() and array.type != pa.null():
        return _texts(array.to_pylist())
    try:
        return array.cast(field.type)
    except pa.ArrowInvalid as error:
        raise ResultNotWritable(
            f"column {field.name!r} has integers and floats that no type of Parquet keeps both of: CAST it in the query"
        ) from error
