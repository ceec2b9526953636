"""What the version of Airflow tells where no name does."""

from __future__ import annotations

import re
from typing import Final

from airflow import __version__

_VERSION: Final = tuple(int(part) for part in re.findall(r"\d+", __version__)[:3])
_MAJOR_MINOR: Final = _VERSION[:2]

#: Whether a plugin can add pages, which know who asks, and whether they may read the DAG of a query.
HAS_PAGES: Final = _VERSION >= (3, 1, 1)

#: Whether a task can ask a person.
HAS_HUMAN_INPUT: Final = _MAJOR_MINOR >= (3, 1)

#: Whether the ``extra`` of an asset event can hold mappings: 3.0 fails a task that has succeeded because of one.
HAS_NESTED_EXTRA: Final = _MAJOR_MINOR >= (3, 1)

#: Whether an asset event can be of a partition.
HAS_PARTITIONS: Final = _MAJOR_MINOR >= (3, 2)

#: Whether Airflow keeps the state of tasks and of assets.
HAS_STATE_STORES: Final = _MAJOR_MINOR >= (3, 3)
