"""Looking for secrets everywhere: in files, tables and answers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from support.postgres import Database


@dataclass(frozen=True)
class Haystack:
    """Somewhere to look."""

    name: str
    content: bytes


@dataclass(frozen=True)
class PlantedSecret:
    """A secret, and what it is."""

    name: str
    value: str

    def forms(self) -> tuple[bytes, bytes]:
        """As it is, and as PostgreSQL dumps bytes."""
        value = self.value.encode()
        return value, value.hex().encode()


def found(canaries: Iterable[PlantedSecret], places: Iterable[Haystack]) -> list[str]:
    """``name of the canary in name of the place``, wherever one is."""
    forms = [(canary.name, form) for canary in canaries for form in canary.forms()]
    return sorted({f"{name} in {place.name}" for place in places for name, form in forms if form in place.content})


def files(*folders: Path) -> Iterator[Haystack]:
    """Every file below the folders, but those that running processes remove meanwhile."""
    for folder in folders:
        for root, _, names in os.walk(folder):
            for path in sorted(Path(root, name) for name in names):
                with suppress(FileNotFoundError):
                    yield Haystack(str(path.relative_to(folder.parent)), path.read_bytes())


def tables(database: Database) -> Iterator[Haystack]:
    """Every table of a database, as PostgreSQL dumps it."""
    with closing(database.connect(autocommit=True)) as connection:
        listed = connection.execute(
            "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"
        ).fetchall()
        for (table,) in listed:
            with connection.cursor().copy(f"COPY (SELECT * FROM {table}) TO STDOUT") as copy:
                yield Haystack(f"{database.name} {table}", b"".join(bytes(block) for block in copy))
