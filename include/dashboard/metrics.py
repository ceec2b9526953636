"""The metrics of include/dbt, computed from the marts by their definitions in the dbt package. Nothing is written.

A measure there is an aggregate of one column of a mart, and a metric a measure or the ratio of two metrics.
"""

from __future__ import annotations

import re
import sqlite3
from datetime import date
from pathlib import Path
from typing import Any, Final

import pandas as pd
import yaml
from sqlalchemy import Engine, Select, column, create_engine, select, table

from outbound_transfer.warehouse.views import render_views

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_DEFINITIONS: Final = _REPOSITORY / "include/dbt/models/semantic/_semantic.yml"

PREFIX: Final = "outbound_transfer_"


def connect(warehouse: str) -> Engine:
    """Return an engine that only reads.

    :param warehouse: SQLAlchemy's URL of a database in which dbt has built the marts, or the path of an SQLite file
        that the operators write, where the marts are views of this connection alone.
    """
    if "://" in warehouse:
        return create_engine(warehouse, execution_options={"postgresql_readonly": True})
    file = Path(warehouse).resolve(strict=True)
    views = re.sub(r"^DROP VIEW .*$", "", render_views("sqlite"), flags=re.MULTILINE)
    views = views.replace(f"CREATE VIEW {PREFIX}", f"CREATE TEMP VIEW {PREFIX}_")

    def open_file() -> sqlite3.Connection:
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, check_same_thread=False)
        connection.executescript(views)
        return connection

    return create_engine("sqlite://", creator=open_file)


class Metrics:
    """The metrics of some days.

    :param account: of one account; of all of them where it is None.
    """

    def __init__(self, engine: Engine, first: date, last: date, account: str | None = None) -> None:
        definitions = yaml.safe_load(_DEFINITIONS.read_text())
        self._engine, self._first, self._last, self._account = engine, first, last, account
        self._metrics = {each["name"]: each for each in definitions["metrics"]}
        self._measures = {each["name"]: each for model in definitions["semantic_models"] for each in model["measures"]}
        self._frames = {
            each["name"]: frame
            for model in definitions["semantic_models"]
            for frame in [self._read(model)]
            for each in model["measures"]
        }

    def label(self, name: str) -> str:
        """Return the title of a metric."""
        return str(self._metrics[PREFIX + name]["label"])

    def description(self, name: str) -> str:
        """Return the definition of a metric, in words."""
        return str(self._metrics[PREFIX + name]["description"])

    def by_day(self, *names: str) -> pd.DataFrame:
        """Return metrics by day, a column each with their titles; missing where there is no number."""
        return pd.DataFrame({self.label(name): self._series(PREFIX + name, "day") for name in names}).sort_index()

    def total(self, name: str) -> float | None:
        """Return a metric of all days; None where there is no number."""
        series = self._series(PREFIX + name, "all")
        return None if series.empty or pd.isna(series.iloc[0]) else float(series.iloc[0])

    def overdue(self) -> pd.DataFrame:
        """Return the overdue transfers, the next expiry first."""
        columns = ("account", "transfer_id", "subject", "sent_on", "recipients_outstanding", "hours_left")
        query = self._select("outbound_transfer__expiring_transfers", "sent_on", *columns)
        return self._fetch(query.where(column("overdue") == 1).order_by(column("hours_left")))

    def _series(self, name: str, key: str) -> pd.Series:
        """Return a metric by ``day``, or by ``all``, which is the same for each row."""
        metric = self._metrics[name]
        parameters = metric["type_params"]
        if metric["type"] == "ratio":
            denominator = self._series(parameters["denominator"], key)
            return self._series(parameters["numerator"], key) / denominator.where(denominator != 0)
        measure = parameters["measure"]
        name, fill = (measure, None) if isinstance(measure, str) else (measure["name"], measure["fill_nulls_with"])
        values = self._frames[name].groupby(key)[self._measures[name]["expr"]]
        # A sum of no number is none, as in SQL.
        series = values.sum(min_count=1) if self._measures[name]["agg"] == "sum" else values.median()
        if fill is None:
            return series
        everywhere = pd.date_range(self._first, self._last).strftime("%Y-%m-%d") if key == "day" else [True]
        return series.reindex(everywhere, fill_value=fill).fillna(fill)

    def _read(self, model: dict[str, Any]) -> pd.DataFrame:
        day = model["defaults"]["agg_time_dimension"]
        columns = [each["expr"] for each in model["measures"]]
        mart = model["model"].removeprefix("ref('").removesuffix("')")
        frame = self._fetch(self._select(mart, day, *columns, day))
        frame["day"] = frame.pop(day).astype(str)
        frame[columns] = frame[columns].apply(pd.to_numeric)
        return frame.assign(all=True)

    def _select(self, mart: str, day: str, *columns: str) -> Select[Any]:
        query = select(*map(column, columns)).select_from(table(mart))
        query = query.where(column(day).between(self._first, self._last))
        return query if self._account is None else query.where(column("account") == self._account)

    def _fetch(self, query: Select[Any]) -> pd.DataFrame:
        with self._engine.connect() as connection:
            return pd.read_sql(query, connection)


def accounts(engine: Engine) -> list[str]:
    """Return the accounts that have sent."""
    query = select(column("account")).select_from(table("outbound_transfer__funnel_by_day")).distinct()
    with engine.connect() as connection:
        return sorted(connection.scalars(query))
