"""Numbers that the service's rules leave open. docs/sandbox.md, "What we assumed", gives the reasons for the rest.

A real account may differ in any of them.
"""

from __future__ import annotations

TRANSFER_KEY_PREFIX = "obt_"  # the rules ask for a fixed prefix and do not name it
EVENT_KEY_PREFIX = "obs_"  # fixed by the rules

FIRST_USER = "sender@example.com"  # RFC 2606 reserves the domain for examples
FIRST_ADMINISTRATOR = "admin@example.com"

# The account's settings.
PER_FILE_LIMIT_MB = 2048
DELIVERY_WINDOW_DAYS = 14  # shorter than a draft's 30 days, so that the recalculation at send is visible
OUTSTANDING_TRANSFER_LIMIT = 1000
CREDITS = 10  # used with per_transfer billing only

# Lifetimes.
DRAFT_LIFETIME_DAYS = 30  # fixed by the rules
CODE_LIFETIME_SECONDS = 600
SESSION_LIFETIME_SECONDS = 12 * 3600  # of real time
LOCKOUT_SECONDS = 15 * 60  # after MAX_WRONG_ANSWERS
SEND_DURATION_SECONDS = 0.005  # sends that overlap within this time are concurrent

# Slow clients are disconnected after these.
HEAD_TIMEOUT_SECONDS = 20.0  # for a complete request head
BODY_TIMEOUT_SECONDS = 20.0  # for a complete form or JSON body
UPLOAD_STALL_SECONDS = 60.0  # for each megabyte of an upload
WRITE_STALL_SECONDS = 60.0  # without reading any of the response

# The largest input that is accepted.
MAX_HEAD_BYTES = 65_536
MAX_JSON_BYTES = 1_048_576  # ten times what 250 recipients with long names take
MAX_FORM_BYTES = 65_536
MAX_ADDRESS_LENGTH = 320  # RFC 5321 allows 254
MAX_DISPOSITION_LENGTH = 8_192  # an object store's longest name, 1,024 bytes, fits with its filename*
MAX_DISPOSITION_PARAMETERS = 255  # counts every semicolon, also those within a name
MAX_RANGE_LENGTH = 64  # a longer Range header is ignored: the response is the whole file
MAX_TIMESTAMP = 2**63 - 1  # the largest integer in SQLite
MAX_CLOCK_OFFSET_DAYS = 200 * 365  # keeps dates within the four-digit years of ISO 8601
MAX_SYNTHETIC_EVENTS_PER_CALL = 10_000_000

# Logs and lists.
MAX_LOG_BYTES = 33_554_432  # of the request log: about 150,000 calls, more than a rate window can hold
MAX_LOGGED_TEXT = 1_000  # characters of a path or query
MAX_MAIL_LISTED = 100_000  # messages in one response of the control API
ROWS_PER_PAGE = 25  # in every list of the web application

# Signing in and picking up.
MAX_WRONG_ANSWERS = 5  # in a row
MAX_CODES_SENT = 5  # in a row, within LOCKOUT_SECONDS
MAX_THROTTLED_SUBJECTS = 10_000  # names and recipients whose wrong answers are counted at a time
MAX_SESSIONS_PER_SUBJECT = 20  # the oldest sessions end
CODE_DIGITS = 6
MIN_PASSWORD_LENGTH = 8  # for guests who register
PASSWORD_LOG_N = 14  # scrypt's cost: 16 MB and about 50 ms for each guess
