"""Parquet, by Arrow: exact types, found from all values of a column before the first is written."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from types import NoneType
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from outbound_transfer.queries.errors import ResultNotWritable
from outbound_transfer.queries.values import Result, to_text


def write(result: Result, file: BinaryIO) -> None:
    """Write a result as Parquet, compressed with Snappy.

    A driver does not say what a column holds, and a batch may hold nothing but NULLs. So all batches are first put into
    a temporary file, each with the types of its values.
    """
    types, batches = [{pa.null()} for _ in result.columns], 0
    with tempfile.TemporaryFile() as spool:
        for batch in result.batches:
            arrays = list(map(_to_array, batch))
            for seen, array in zip(types, arrays, strict=True):
                seen.add(array.type)
            pickle.dump(arrays, spool)
            batches += 1
        spool.seek(0)
        schema = pa.schema(list(zip(result.columns, map(_common_type, types), strict=True)))
        with pq.ParquetWriter(file, schema, compression="snappy") as writer:
            for _ in range(batches):
                arrays = pickle.load(spool)  # noqa: S301  # what stands above
                cast = [_cast_column(array, field) for array, field in zip(arrays, schema, strict=True)]
                writer.write_table(pa.Table.from_arrays(cast, schema=schema))


def _to_array(values: Sequence[Any]) -> pa.Array:
    """Return values as an array of their type; as texts if they have none in common, or Arrow has none for them."""
    kinds = set(map(type, values)) - {NoneType}
    zones = {value.tzinfo is not None for value in values if value is not None} if kinds == {datetime} else set()
    if kinds == {int, float} or (len(kinds) <= 1 and len(zones) <= 1):
        with suppress(pa.ArrowInvalid, OverflowError):
            return pa.array(values, pa.timestamp("us", tz="UTC") if True in zones else None)
    return _texts(values)


def _texts(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else to_text(value) for value in values], pa.string())


def _common_type(types: set[pa.DataType]) -> pa.DataType:
    """Return the type of a column; text if it holds only NULLs, or values without a common type."""
    known = types - {pa.null()}
    decimals = set(filter(pa.types.is_decimal, known))
    if decimals and known - decimals <= {pa.int64()}:
        # Of the most digits, so that the type does not change with the values of the day.
        scale = max(one.scale for one in decimals)
        whole = max(one.precision - one.scale for one in decimals | {pa.decimal128(19, 0) for _ in known - decimals})
        return pa.decimal128(38, scale) if whole + scale <= 38 else pa.string()
    if known == {pa.int64(), pa.float64()}:
        return pa.float64()
    return known.pop() if len(known) == 1 else pa.string()


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
