"""Write the analysts' views of the package from the marts of include/dbt, for databases whose users need no dbt.

What differs between databases stays a call of a function of ``outbound_transfer.store.views``. The tables are read
as they are, without the staging models: keys are enforced in these databases.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from jinja2 import Environment, StrictUndefined

INCLUDE: Final = Path(__file__).resolve().parents[1] / "include"
PACKAGE: Final = INCLUDE / "dbt"
FILE: Final = INCLUDE.parent / "plugins/outbound_transfer/store/views/views.sql"
PREFIX: Final = "outbound_transfer_"
STAGING: Final = "stg_outbound_transfer__"

#: View by mart, in the order of the file.
VIEWS: Final = {
    "outbound_transfer__funnel_by_day": "outbound_transfer_funnel_by_day",
    "outbound_transfer__time_to_pickup": "outbound_transfer_time_to_pickup",
    "outbound_transfer__expiring_transfers": "outbound_transfer_expiring_transfers",
    "outbound_transfer__events_by_day": "outbound_transfer_events_by_day",
    "outbound_transfer__feed_health": "outbound_transfer_feed_lag",
}

_HEAD: Final = """\
-- Views for analysts. include/sql/README.md says what each column means.
-- Written by scripts/views.py from the dbt models of include/dbt/models/marts.
"""


def content() -> str:
    """Return the text of the file."""
    return _HEAD + "".join(f"\n{_call('replace_view')(view)} AS\n{_query(mart)};\n" for mart, view in VIEWS.items())


def _query(mart: str) -> str:
    """Return the query of a mart, with calls in place of the macros and of what dbt itself defines."""
    environment = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701  # SQL, not HTML
    macros = ("utc_date", "seconds_between", "utc_now")
    environment.globals.update(
        {
            "outbound_transfer": SimpleNamespace(**{name: _call(name) for name in macros}),
            "dbt": SimpleNamespace(type_int=_call("integer"), type_bigint=_call("bigint")),
            "config": lambda **_: "",
            "ref": lambda model: PREFIX + model.removeprefix(STAGING),
            "var": lambda _name, default: default,
        }
    )
    return environment.from_string((PACKAGE / f"models/marts/{mart}.sql").read_text()).render().strip()


def _call(name: str) -> Callable[..., str]:
    """Return a function that returns a call of another one, whose arguments may be such calls."""

    def call(*arguments: str) -> str:
        texts = (text[3:-3] if text.startswith("{{ ") else f'"{text}"' for text in arguments)
        return f"{{{{ {name}({', '.join(texts)}) }}}}"

    return call


if __name__ == "__main__":
    FILE.write_text(content())
