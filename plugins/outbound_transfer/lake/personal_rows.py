"""The rows about persons in an Iceberg table, and in objects."""

from __future__ import annotations

import io
import json
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import Table

from outbound_transfer.lake.feed_state import ERASED_ADDRESSES, list_accounts, read_erased
from outbound_transfer.lake.feed_table import Change, FeedTable, filters
from outbound_transfer.lake.rows import PERSONAL_COLUMNS, SCHEMA, redact_rows
from outbound_transfer.protocol.personal_data import ERASED, Replace
from outbound_transfer.warehouse.errors import UnusableTable
from outbound_transfer.warehouse.privacy import PersonalData, read_privacy, without_others
from outbound_transfer.warehouse.timestamps import utc_now
