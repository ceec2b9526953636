WITH
{%- if var('outbound_transfer_lake', false) %}
-- A lake has neither a table of cursors nor a log of polls.
feeds AS (
    SELECT
        account,
        CAST(NULL AS {{ dbt.type_bigint() }}) AS cursor,
        max(loaded_at) AS last_page_at,
        CAST(NULL AS {{ dbt.type_int() }}) AS caught_up,
        CAST(NULL AS {{ dbt.type_bigint() }}) AS failed_polls_since
    FROM {{ ref('stg_outbound_transfer__events') }}
    GROUP BY account
),
{%- else %}
pages AS (
    SELECT
        account,
        polled_at,
        has_more,
        row_number() OVER (PARTITION BY account ORDER BY polled_at DESC, poll_id DESC) AS age
    FROM {{ ref('stg_outbound_transfer__feed_polls') }}
    WHERE action = 'poll' AND cursor_to IS NOT NULL
),
feeds AS (
    SELECT
        c.account,
        c.cursor,
        p.polled_at AS last_page_at,
        1 - CAST(p.has_more AS {{ dbt.type_int() }}) AS caught_up,
        count(f.poll_id) AS failed_polls_since
    FROM {{ ref('stg_outbound_transfer__feed_cursor') }} AS c
    LEFT JOIN pages AS p ON p.account = c.account AND p.age = 1
    LEFT JOIN {{ ref('stg_outbound_transfer__feed_polls') }} AS f
        ON f.account = c.account AND f.action = 'poll' AND f.cursor_to IS NULL
        AND (p.polled_at IS NULL OR f.polled_at > p.polled_at)
    GROUP BY c.account, c.cursor, p.polled_at, p.has_more
),
{%- endif %}
rejected AS (
    SELECT account, count(*) AS rejected_lines
    FROM {{ ref('stg_outbound_transfer__rejected_lines') }}
    GROUP BY account
),
loads AS (
    SELECT account, {{ outbound_transfer.seconds_between('max(occurred_at)', 'max(loaded_at)') }} AS seconds_to_load
    FROM {{ ref('stg_outbound_transfer__events') }}
    WHERE occurred_at IS NOT NULL
    GROUP BY account
)
SELECT
    feeds.account,
    feeds.cursor,
    feeds.last_page_at,
    {{ outbound_transfer.seconds_between('feeds.last_page_at', outbound_transfer.utc_now()) }} AS seconds_since_last_page,
    feeds.caught_up,
    feeds.failed_polls_since,
    coalesce(rejected.rejected_lines, 0) AS rejected_lines,
    loads.seconds_to_load
FROM feeds
LEFT JOIN rejected ON rejected.account = feeds.account
LEFT JOIN loads ON loads.account = feeds.account
