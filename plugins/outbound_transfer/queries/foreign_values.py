"""Values of numpy, pandas, polars and drivers, as values of Python. No library is loaded for them."""

from __future__ import annotations

import sys
from typing import Any

from outbound_transfer.queries.errors import ResultNotWritable

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
    if is_of("numpy", "ndarray", value) and value.ndim:
        return list(value)
    if is_of("numpy", "ndarray", value) or is_of("numpy", "generic", value):
        return _numpy_value(value)
    if value is getattr(sys.modules.get("pandas"), "NA", None):
        return None
    return _driver_value(value)


def _numpy_value(value: Any) -> Any:
    """Return the value of a scalar, or of an array without dimensions."""
    if value.dtype.names:  # a row of a structured array
        return list(value)
    plain, kind = value.tolist(), value.dtype.kind
    if kind in "mM" and isinstance(plain, int):  # Python's types have too few digits or too few years for it
        is_fine = value.dtype.str.endswith(_FINER_THAN_MICROSECONDS)
        return value.astype(f"{kind}8[us]").tolist() if is_fine else str(value)
    if not is_of("numpy", "generic", plain):
        return plain
    # A long double stays one: text where a float has too few digits, or too small a range.
    return float(plain) if kind == "f" and (float(plain) == plain or plain != plain) else str(plain)


def _driver_value(value: Any) -> Any:
    for method in ("tolist", "read"):  # a Series or an array of pandas; large objects
        if callable(convert := getattr(value, method, None)):
            return convert()
    kind: Any = type(value)
    if (kind.__str__, kind.__repr__) == (object.__str__, object.__repr__):
        raise ResultNotWritable(f"a value of type {kind.__name__} has no text: convert it in the query, with CAST")
    return str(value)
