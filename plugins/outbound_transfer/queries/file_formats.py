"""Which format a result is written in, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import BinaryIO, Final

from outbound_transfer.protocol.errors import InvalidDelivery
from outbound_transfer.queries.errors import ResultNotWritable
from outbound_transfer.queries.rows import Result


@dataclass(frozen=True)
class FileFormat:
    """One format.

    :ivar name: as in the argument ``file_format``.
    :ivar suffixes: of the names of its files.
    :ivar package: what the format needs installed, "" for nothing.
    :ivar needs_unique_names: whether two columns of one name cannot both be read.
    """

    name: str
    suffixes: tuple[str, ...]
    package: str = ""
    needs_unique_names: bool = False


FORMATS: Final[Mapping[str, FileFormat]] = {
    one.name: one
    for one in (
        FileFormat("csv", (".csv",)),
        FileFormat("jsonl", (".jsonl", ".ndjson"), needs_unique_names=True),
        FileFormat("parquet", (".parquet",), package="pyarrow", needs_unique_names=True),
        FileFormat("xlsx", (".xlsx",), package="xlsxwriter"),
    )
}


def format_of(file_name: str, file_format: str | None) -> FileFormat:
    """Return the format of a file, by its name's suffix where it is not given.

    :raises InvalidDelivery: there is no such format, or no suffix that names one.
    """
    if file_format:
        if file_format not in FORMATS:
            raise InvalidDelivery(f"file_format is one of {', '.join(FORMATS)}, not {file_format!r:.100}")
        return FORMATS[file_format]
    suffix = PurePath(file_name).suffix.lower()
    found = [one for one in FORMATS.values() if suffix in one.suffixes]
    if not found:
        suffixes = ", ".join(suffix for one in FORMATS.values() for suffix in one.suffixes)
        raise InvalidDelivery(f"the suffix of {file_name!r:.300} names no format ({suffixes}): set file_format")
    return found[0]


def write_result(result: Result, file_format: FileFormat, file: BinaryIO, *, escape_formulas: bool = True) -> None:
    """Write a result.

    :param escape_formulas: of CSV; see :func:`.formats.csv.write`.
    :raises InvalidDelivery: a package is missing.
    :raises ResultNotWritable: a value, or a column, has no exact form in the format.
    """
    repeated = [name for name, count in Counter(result.columns).items() if count > 1]
    if file_format.needs_unique_names and repeated:
        raise ResultNotWritable(
            f"two columns are named {repeated[0]!r:.100}, which {file_format.name} cannot tell apart: give each a "
            "name of its own with AS"
        )
    try:
        # What a format needs is imported only where it is written.
        module = import_module(f"outbound_transfer.queries.formats.{file_format.name}")
        options = {"escape_formulas": escape_formulas} if file_format.name == "csv" else {}
        module.write(result, file, **options)
    except ModuleNotFoundError as error:
        if error.name != file_format.package:
            raise
        raise InvalidDelivery(
            f"{file_format.name} needs a package that is not installed: pip install "
            f"'airflow-provider-outbound-transfer[{file_format.name}]'"
        ) from None
