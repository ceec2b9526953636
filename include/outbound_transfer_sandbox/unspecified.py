"""What service.md leaves open, decided in one place. Everything here may differ on a real account.

Numbers are the constants below. The rest, by subject:

Order of checks
    Transfer interface: HTTP framing (411 for an unreadable Content-Length, 400 otherwise), key (401), account feature
    (403 api_not_enabled), the user's grants (403 api_not_permitted, then sending_not_permitted), rate (429), then the
    transfer (404), its state (409), the request itself (411, 400, 413). Event feed: key, parameters, rate.
    Send: state, files, recipient limit, outstanding-transfer limit, credit.
Rates
    A request counts once it has passed the key and grant checks, whatever its answer; a 401, a 403 of the grants and a
    429 do not count, or a client that keeps asking would never get in again. Feed calls count on their own limit only.
Lifetimes
    A draft past its 30 days is gone: every call answers 404 and its files are removed.
Listing
    A transfer sent while a client pages is listed after the older ones, on a page of its own, so that "appears on a
    later page" holds; a client that follows next_cursor to null meets it. `all` includes canceled transfers.
Input
    Unknown or repeated JSON fields and repeated query parameters are refused: a stand-in should find typing errors.
    null in an optional field is the same as leaving it out. Lengths count Unicode code points. NUL is refused.
    A recipient's `phone` is contact data, no security field: it is accepted with every security option.
    An address needs a dot in its domain; names reserved for tests (`.test`, example.com) pass.
    Names of files are compared code point by code point; control characters make one unusable; a backslash separates
    directories also where quoted-string grammar would drop it, since that is what such clients mean.
    An upload of zero bytes is a file of zero bytes. Whatever finds the disk's quota used up gets 503: space may free.
    A Content-Disposition of many kilobytes or semicolons is refused with 400, as is an address beyond 320 characters.
    A disposition other than attachment is refused; a filename* that cannot be decoded gives way to filename.
Feed
    Event ids are the integers of the cursor. Errors have the Transfer interface's body. A cursor beyond the end is
    valid and comes back as it went out. Pickup makes one `file_downloaded` per file, at every download.
    Monitoring is on as long as there is an active event key.
Recipients
    Where one address stands twice, each pickup counts for the next of them that has not collected.
    A recipient has collected the transfer with the first of its files whose last byte went out. A download that breaks
    off counts for nothing; one that is canceled meanwhile never ends.
    Addresses are compared without regard to case; answers without regard to case and spacing, and kept as hashes.
    A code is asked for on the page, is good once and for ten minutes, and replaces the one before. A guest registers
    with the address that the link was sent to: the link proves it. One registration serves all transfers to the
    address, each asks to sign in, and a password that is forgotten stays so until the sandbox is reset.
    Wrong answers are limited for each recipient, guest and user; what is right is not looked at until the time is over.
    A link ends with its transfer: expired and canceled ones say so and name no file.
Web application
    Users see the transfers that they sent, and the mail about them; administrators see all mail and the settings.
    Drafts are in no list. Sessions last twelve hours of real time: moving the clock signs nobody out.
"""

from __future__ import annotations

from .clock import DAY, SECOND

TRANSFER_KEY_PREFIX = "obt_"  # "a fixed service-specific prefix"; read beside the documented obs_
EVENT_KEY_PREFIX = "obs_"  # documented; here so that both stand together

FIRST_USER = "sender@example.com"  # users are people who send; RFC 2606 keeps the domain for examples

FIRST_ADMINISTRATOR = "admin@example.com"

PER_FILE_LIMIT_MB = 2048  # roomy enough for tests of large files, small enough to be met
DELIVERY_WINDOW_DAYS = 14  # shorter than a draft's 30 days, so that "recalculated at send" is visible
OUTSTANDING_TRANSFER_LIMIT = 1000  # out of the way until a test lowers it
CREDITS = 10  # used only with per_transfer billing
DEFAULT_SECURITY = "none"  # the only option that needs nothing of the recipient

DRAFT_LIFETIME = 30 * DAY  # documented; kept with the other lifetimes
MAX_JSON_BYTES = 1_048_576  # 250 recipients with long names fit ten times over
SEND_SECONDS = 0.005  # how long a send takes: what overlaps it is "truly concurrent", and no two calls in a row do
UPLOAD_STALL_SECONDS = 60.0  # an upload that needs longer for a megabyte counts as cut off
STALL_SECONDS = 60.0  # a client that takes nothing of its answer for this long is cut off
HEAD_SECONDS = 20.0  # for a request's head to come in whole; also for the first one of a connection
MAX_HEAD_BYTES = 65_536
MAX_DISPOSITION = 8_192  # characters; an object store's longest name, 1,024 bytes, fits with its filename*
MAX_PARAMETERS = 255  # semicolons in it, those within a name included
MAX_ADDRESS = 320  # characters of an email address; RFC 5321 ends at 254
MAX_RANGE = 64  # characters; a longer Range, of many pieces, is not looked at: the whole file is the answer
MAX_CLOCK_OFFSET = 200 * 365 * DAY  # keeps every date within ISO 8601's four-digit years
LOG_BYTES = 33_554_432  # of the request log, some 150,000 calls: far more than any rate window needs
LOGGED_TEXT = 1_000  # characters of a path or query in it; more is nobody's address
KEPT_ATTEMPTS = 10_000  # names and recipients whose wrong answers are counted at a time; each took a costly guess
SESSIONS_EACH = 20  # of one person at a time; the oldest end
SHOWN_MAIL = 100_000  # messages in one answer of the control API
PLANNED_FAULTS = 10_000  # those that were met included, until they are cleared
PLANNED_BYTES = 16_777_216  # of all of them
SYNTHETIC_EVENTS_PER_CALL = 10_000_000  # what one control call may append

MAX_FORM_BYTES = 65_536  # the account's settings fit thirty times over
BODY_SECONDS = 20.0  # for a form or a JSON body to come in whole
WRONG_ANSWERS = 5  # in a row; a typing error or two, and no search through a million codes
LOCKED = 15 * 60 * SECOND  # how long nothing is looked at then
CODE_DIGITS = 6
CODE_LIFETIME = 10 * 60 * SECOND
CODES_SENT = 5  # in a row within LOCKED, or a link would flood its recipient
SESSION_LIFETIME = 12 * 3600 * SECOND
PASSWORD_LOG_N = 14  # scrypt's cost: 16 MB and some 50 ms for each guess
MIN_PASSWORD = 8  # characters, for guests who register
PAGE_ROWS = 25  # of every list in the web application

FOREVER = 2**63 - 1  # later than any instant; the largest integer that SQLite keeps
