"""Which format a result is written in, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import PurePath
from typing import BinaryIO, Final

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.queries.errors import ResultNotWritable
from outbound_transfer.queries.rows import Result

#: By the suffix of a file's name.
FORMATS: Final[Mapping[str, str]] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".xlsx": "xlsx",
}

#: What a format needs installed.
_PACKAGES: Final = {"parquet": "pyarrow", "xlsx": "xlsxwriter"}


def format_of(file_name: str, file_format: str | None) -> str:
    """Return the format of a file, by its name's suffix where it is not given.

    :raises InvalidDelivery: there is no such format, or no suffix that names one.
    """
    if file_format:
        if file_format not in FORMATS.values():
            names = ", ".join(dict.fromkeys(FORMATS.values()))
            raise InvalidDelivery(f"file_format is one of {names}, not {file_format!r:.100}")
        return file_format
    suffix = PurePath(file_name).suffix.lower()
    if suffix not in FORMATS:
        raise InvalidDelivery(
            f"the suffix of {file_name!r:.300} names no format ({', '.join(FORMATS)}): set file_format"
        )
    return FORMATS[suffix]


def write_result(result: Result, file_format: str, file: BinaryIO, *, escape_formulas: bool = True) -> None:
    """Write a result.

    :param escape_formulas: of CSV; see :func:`.formats.csv.write`.
    :raises InvalidDelivery: a package is missing.
    :raises ResultNotWritable: a value, or a column, has no exact form in the format.
    """
    repeated = [name for name, count in Counter(result.columns).items() if count > 1]
    if file_format in ("jsonl", "parquet") and repeated:
        raise ResultNotWritable(
            f"two columns are named {repeated[0]!r:.100}, which {file_format} cannot tell apart: give each a name of "
            "its own with AS"
        )
    try:
        # What a format needs is imported only where it is written.
        module = import_module(f"outbound_transfer.queries.formats.{file_format}")
        options = {"escape_formulas": escape_formulas} if file_format == "csv" else {}
        module.write(result, file, **options)
    except ModuleNotFoundError as error:
        if error.name != _PACKAGES.get(file_format):
            raise
        raise InvalidDelivery(
            f"{file_format} needs a package that is not installed: pip install "
            f"'airflow-provider-outbound-transfer[{file_format}]'"
        ) from None
