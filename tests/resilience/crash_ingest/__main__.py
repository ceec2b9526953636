"""``python -m resilience.crash_ingest``: see :mod:`resilience.crash_ingest.kills`."""

from __future__ import annotations

import sys

from resilience.crash_ingest.kills import main

sys.exit(main())
