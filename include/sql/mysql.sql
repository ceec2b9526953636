-- Views for analysts, MySQL and MariaDB. README.md beside this file says what each column means.

DROP VIEW IF EXISTS outbound_transfer_funnel_by_day;
CREATE VIEW outbound_transfer_funnel_by_day AS
SELECT
    account,
    DATE(sent_at) AS sent_on,
    count(*) AS sent,
    count(CASE WHEN picked_up_count > 0 THEN 1 END) AS picked_up_by_any,
    count(CASE WHEN status = 'complete' THEN 1 END) AS complete,
    count(CASE WHEN status = 'expired' THEN 1 END) AS expired,
    count(CASE WHEN status = 'canceled' THEN 1 END) AS canceled,
    count(CASE WHEN status NOT IN ('complete', 'expired', 'canceled', 'deleted') THEN 1 END) AS outstanding,
    CAST(sum(recipient_count) AS signed) AS recipients,
    CAST(sum(picked_up_count) AS signed) AS recipients_picked_up
FROM outbound_transfer_transfers
GROUP BY account, DATE(sent_at);

DROP VIEW IF EXISTS outbound_transfer_time_to_pickup;
CREATE VIEW outbound_transfer_time_to_pickup AS
SELECT
    r.account,
    r.transfer_id,
    r.position,
    r.email,
    r.name,
    t.sent_at,
    r.picked_up_at,
    TIMESTAMPDIFF(MICROSECOND, t.sent_at, r.picked_up_at) / 1000000.0 AS seconds_to_pickup
FROM outbound_transfer_recipients AS r
INNER JOIN outbound_transfer_transfers AS t ON t.account = r.account AND t.transfer_id = r.transfer_id;

DROP VIEW IF EXISTS outbound_transfer_expiring_transfers;
CREATE VIEW outbound_transfer_expiring_transfers AS
SELECT
    account,
    transfer_id,
    subject,
    status,
    expires_at,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) / 1000000.0 / 3600.0 AS hours_left,
    recipient_count - picked_up_count AS recipients_outstanding
FROM outbound_transfer_transfers
WHERE status NOT IN ('complete', 'expired', 'canceled', 'deleted')
ORDER BY expires_at;

DROP VIEW IF EXISTS outbound_transfer_feed_lag;
CREATE VIEW outbound_transfer_feed_lag AS
SELECT
    c.account,
    c.cursor,
    p.polled_at AS last_page_at,
    TIMESTAMPDIFF(MICROSECOND, p.polled_at, UTC_TIMESTAMP(6)) / 1000000.0 AS seconds_since_last_page,
    1 - p.has_more AS caught_up,
    (
        SELECT count(*)
        FROM outbound_transfer_feed_polls AS f
        WHERE f.account = c.account AND f.action = 'poll' AND f.cursor_to IS NULL
            AND (p.polled_at IS NULL OR f.polled_at > p.polled_at)
    ) AS failed_polls_since,
    (SELECT count(*) FROM outbound_transfer_rejected_lines AS l WHERE l.account = c.account) AS rejected_lines,
    (
        SELECT TIMESTAMPDIFF(MICROSECOND, max(e.occurred_at), max(e.loaded_at)) / 1000000.0
        FROM outbound_transfer_events AS e
        WHERE e.account = c.account AND e.occurred_at IS NOT NULL
    ) AS seconds_to_load
FROM outbound_transfer_feed_cursor AS c
LEFT JOIN outbound_transfer_feed_polls AS p
    ON p.account = c.account
    AND p.poll_id = (
        SELECT max(q.poll_id)
        FROM outbound_transfer_feed_polls AS q
        WHERE q.account = c.account AND q.polled_at = (
            SELECT max(polled_at)
            FROM outbound_transfer_feed_polls AS s
            WHERE s.account = c.account AND s.action = 'poll' AND s.cursor_to IS NOT NULL
        )
    );
