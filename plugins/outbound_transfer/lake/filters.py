"""Conditions on rows of an Iceberg table."""

from __future__ import annotations

from typing import Any, Final

import pyiceberg.expressions

#: Without types: those of the constructors deny the arguments that they are documented with.
filters: Final[Any] = pyiceberg.expressions
