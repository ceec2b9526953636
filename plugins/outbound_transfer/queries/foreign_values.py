"""Values of numpy, pandas, polars and drivers, as values of Python. No library is loaded for them."""

from __future__ import annotations

import sys
from typing import Any

from outbound_transfer.queries.errors import ResultNotWritable

#: Kinds of numpy's types whose ``tolist`` gives values of Python, each up to a size in bytes; a larger float is a long
#: double, which stays one, and a time with nanoseconds becomes an integer.
_PLAIN_SIZES = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16, "S": sys.maxsize, "U": sys.maxsize}

#: Ends of the names of numpy's types for times that Python's have no digits for.
_FINER_THAN_MICROSECONDS = ("ns]", "ps]", "fs]", "as]")


def is_of(library: str, kind: str, value: object) -> bool:
    """Return whether a value is of a library's type. A library that is not loaded has made none."""
    found = getattr(sys.modules.get(library), kind, None)
    return found is not None and isinstance(value, found)


def is_frame(value: object) -> bool:
    """Return whether a value is a DataFrame of pandas or polars."""
    return is_of("pandas", "DataFrame", value) or is_of("polars", "DataFrame", value)


def plain_value(value: Any) -> Any:
    """Return the value of Python that an object of a library stands for; what it holds may be of a library still.

    :raises ResultNotWritable: it is a table, or has no text of its own.
    """
    if is_frame(value) or is_of("polars", "LazyFrame", value):
        raise ResultNotWritable(f"a cell holds a {type(value).__name__}: give its rows as a list of mappings")
    if is_of("polars", "Series", value):
        return value.to_list()
    if is_of("numpy", "ndarray", value):
        return _array_values(value)
    if is_of("numpy", "generic", value):
        return _scalar_value(value)
    if value is getattr(sys.modules.get("pandas"), "NA", None):
        return None
    return _driver_value(value)


def _array_values(array: Any) -> Any:
    if array.itemsize <= _PLAIN_SIZES.get(array.dtype.kind, 0):
        return array.tolist()
    return list(array) if array.ndim else array[()]


def _scalar_value(scalar: Any) -> Any:
    kind = scalar.dtype.kind
    if kind in "mM":
        return _time_value(scalar)
    if kind == "V" and scalar.dtype.names:  # a row of a structured array
        return list(scalar)
    if kind in "fc" and scalar.itemsize > _PLAIN_SIZES[kind]:
        # Text where a float has too few digits, or too small a range.
        return float(scalar) if kind == "f" and (float(scalar) == scalar or scalar != scalar) else str(scalar)
    return scalar.tolist()


def _time_value(scalar: Any) -> Any:
    """Return a date, time or duration of numpy with microseconds; its text if Python's types cannot hold it."""
    plain = scalar.tolist()
    if not isinstance(plain, int):
        return plain
    if scalar.dtype.str.endswith(_FINER_THAN_MICROSECONDS):
        return scalar.astype(f"{scalar.dtype.kind}8[us]").tolist()
    return str(scalar)


def _driver_value(value: Any) -> Any:
    for method in ("tolist", "read"):  # a Series or an array of pandas; large objects
        if callable(convert := getattr(value, method, None)):
            return convert()
    kind: Any = type(value)
    if (kind.__str__, kind.__repr__) == (object.__str__, object.__repr__):
        raise ResultNotWritable(f"a value of type {kind.__name__} has no text: convert it in the query, with CAST")
    return str(value)
