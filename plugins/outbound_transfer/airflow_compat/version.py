"""What the version of Airflow tells where no name does."""

from __future__ import annotations

import re
from typing import Final

from airflow import __version__

_MAJOR_MINOR: Final = tuple(int(part) for part in re.findall(r"\d+", __version__)[:2])

#: Whether an asset event can be of a partition.
HAS_PARTITIONS: Final = _MAJOR_MINOR >= (3, 2)

#: Whether Airflow keeps the state of tasks and of assets.
HAS_STATE_STORES: Final = _MAJOR_MINOR >= (3, 3)
