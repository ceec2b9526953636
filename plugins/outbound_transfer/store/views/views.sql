-- Views for analysts. include/sql/README.md says what each column means.
-- Written by scripts/views.py from the dbt models of include/dbt/models/marts.

{{ replace_view("outbound_transfer_funnel_by_day") }} AS
SELECT
    account,
    {{ utc_date("sent_at") }} AS sent_on,
    count(*) AS sent,
    count(CASE WHEN picked_up_count > 0 THEN 1 END) AS picked_up_by_any,
    count(CASE WHEN status = 'complete' THEN 1 END) AS complete,
    count(CASE WHEN status = 'expired' THEN 1 END) AS expired,
    count(CASE WHEN status = 'canceled' THEN 1 END) AS canceled,
    count(CASE WHEN status NOT IN ('complete', 'expired', 'canceled', 'deleted') THEN 1 END) AS outstanding,
    CAST(sum(CASE WHEN status IN ('canceled', 'deleted') THEN 0 ELSE recipient_count END)
        AS {{ bigint() }}) AS recipients,
    CAST(sum(CASE WHEN status IN ('canceled', 'deleted') THEN 0 ELSE picked_up_count END)
        AS {{ bigint() }}) AS recipients_picked_up
FROM outbound_transfer_transfers
GROUP BY account, {{ utc_date("sent_at") }};

{{ replace_view("outbound_transfer_time_to_pickup") }} AS
SELECT
    r.account,
    r.transfer_id,
    r.position,
    r.email,
    r.name,
    t.sent_at,
    {{ utc_date("t.sent_at") }} AS sent_on,
    r.picked_up_at,
    {{ seconds_between("t.sent_at", "r.picked_up_at") }} AS seconds_to_pickup
FROM outbound_transfer_recipients AS r
INNER JOIN outbound_transfer_transfers AS t ON t.account = r.account AND t.transfer_id = r.transfer_id;

{{ replace_view("outbound_transfer_expiring_transfers") }} AS
SELECT
    account,
    transfer_id,
    subject,
    status,
    {{ utc_date("sent_at") }} AS sent_on,
    expires_at,
    {{ seconds_between(utc_now(), "expires_at") }} / 3600.0 AS hours_left,
    recipient_count - picked_up_count AS recipients_outstanding,
    CASE
        WHEN {{ seconds_between("sent_at", utc_now()) }}
            > 72 * 3600.0
            THEN 1
        ELSE 0
    END AS overdue
FROM outbound_transfer_transfers
WHERE status NOT IN ('complete', 'expired', 'canceled', 'deleted')
ORDER BY expires_at;

{{ replace_view("outbound_transfer_events_by_day") }} AS
SELECT
    account,
    {{ utc_date("coalesce(occurred_at, loaded_at)") }} AS occurred_on,
    type,
    count(*) AS events,
    CAST(NULL AS {{ bigint() }}) AS failed_authentications
FROM outbound_transfer_events
GROUP BY account, {{ utc_date("coalesce(occurred_at, loaded_at)") }}, type;

{{ replace_view("outbound_transfer_feed_lag") }} AS
WITH
pages AS (
    SELECT
        account,
        polled_at,
        has_more,
        row_number() OVER (PARTITION BY account ORDER BY polled_at DESC, poll_id DESC) AS age
    FROM outbound_transfer_feed_polls
    WHERE action = 'poll' AND cursor_to IS NOT NULL
),
feeds AS (
    SELECT
        c.account,
        c.cursor,
        p.polled_at AS last_page_at,
        1 - CAST(p.has_more AS {{ integer() }}) AS caught_up,
        count(f.poll_id) AS failed_polls_since
    FROM outbound_transfer_feed_cursor AS c
    LEFT JOIN pages AS p ON p.account = c.account AND p.age = 1
    LEFT JOIN outbound_transfer_feed_polls AS f
        ON f.account = c.account AND f.action = 'poll' AND f.cursor_to IS NULL
        AND (p.polled_at IS NULL OR f.polled_at > p.polled_at)
    GROUP BY c.account, c.cursor, p.polled_at, p.has_more
),
rejected AS (
    SELECT account, count(*) AS rejected_lines
    FROM outbound_transfer_rejected_lines
    GROUP BY account
),
loads AS (
    SELECT account, {{ seconds_between("max(occurred_at)", "max(loaded_at)") }} AS seconds_to_load
    FROM outbound_transfer_events
    WHERE occurred_at IS NOT NULL
    GROUP BY account
)
SELECT
    feeds.account,
    feeds.cursor,
    feeds.last_page_at,
    {{ seconds_between("feeds.last_page_at", utc_now()) }} AS seconds_since_last_page,
    feeds.caught_up,
    feeds.failed_polls_since,
    coalesce(rejected.rejected_lines, 0) AS rejected_lines,
    loads.seconds_to_load
FROM feeds
LEFT JOIN rejected ON rejected.account = feeds.account
LEFT JOIN loads ON loads.account = feeds.account;
