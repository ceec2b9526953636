"""``python -m resilience.crash_ingest``: see :mod:`resilience.crash_ingest.ingest`."""

from __future__ import annotations

import sys

from resilience.crash_ingest.ingest import main

sys.exit(main())
