"""A page of the metrics of outbound transfers (`make dashboard`): Streamlit over the marts of include/dbt."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import streamlit as st
from metrics import Metrics, accounts, connect

HOUR = 3600

st.set_page_config("Outbound transfers", layout="wide")
st.title("Outbound transfers")

engine = st.cache_resource(connect)(os.environ["WAREHOUSE"])
period, place = st.columns(2)
days = period.selectbox("Period", [7, 30, 90, 365], index=1, format_func=lambda days: f"The last {days} days")
account = place.selectbox("Account", [None, *accounts(engine)], format_func=lambda name: name or "All accounts")
today = datetime.now(UTC).date()
metrics = Metrics(engine, today - timedelta(days=days - 1), today, account)


def shown(name: str, number: float | None) -> str:
    if number is None:
        return "not known" if name == "failed_authentications" else "–"  # noqa: RUF001  # the dash is meant
    if name == "pickup_rate":
        return f"{number:.1%}"
    if name != "time_to_pickup":
        return f"{number:,.0f}"
    size, unit = next(
        (size, unit) for size, unit in ((HOUR, "h"), (60, "min"), (1, "s")) if number >= size or size == 1
    )
    return f"{number / size:.1f} {unit}"


TILES = ("sent", "pickup_rate", "time_to_pickup", "expired", "overdue", "failed_authentications")
for place, name in zip(st.columns(len(TILES)), TILES, strict=True):
    place.metric(metrics.label(name), shown(name, metrics.total(name)), help=metrics.description(name))

by_day = metrics.by_day(*TILES)
charts = st.columns(3)
charts[0].caption("Transfers by the day of the send")
charts[0].bar_chart(
    by_day[[metrics.label("sent"), metrics.label("expired")]], stack=False, color=["#0068c9", "#ff8700"], height=220
)
charts[1].caption("Pickup rate by the day of the send")
charts[1].line_chart(by_day[metrics.label("pickup_rate")], height=220)
charts[2].caption("Median hours from send to pickup, by the day of the send")
charts[2].line_chart(by_day[metrics.label("time_to_pickup")] / HOUR, height=220)

st.subheader("Overdue transfers")
overdue = metrics.overdue()
if overdue.empty:
    st.write("None.")
else:
    # A grid shows text as it is; a subject may be anything.
    st.dataframe(overdue.round(1), hide_index=True)

st.subheader("By day (UTC)")
st.dataframe(by_day.sort_index(ascending=False))
st.caption("Recent days are not over: their pickup rate rises until the transfers are complete or expired.")
