-- A table without an enforced key may hold an event twice: the first that was loaded counts.
WITH numbered AS (
    SELECT
        source.*,
        row_number() OVER (
            PARTITION BY {{ outbound_transfer.source_name('account') }}, {{ outbound_transfer.source_name('event_id') }}
            ORDER BY
                {{ outbound_transfer.source_name('loaded_at') }},
                {{ outbound_transfer.source_name('cursor_from') }},
                {{ outbound_transfer.source_name('line_number') }}
        ) AS occurrence
    FROM {{ source('outbound_transfer', 'events') }} AS source
    {%- if var('outbound_transfer_lake', false) %}
    WHERE {{ outbound_transfer.source_name('rejected_reason') }} IS NULL
    {%- endif %}
)
SELECT
    {{ outbound_transfer.column('account') }},
    {{ outbound_transfer.column('event_id') }},
    {{ outbound_transfer.column('type') }},
    {{ outbound_transfer.column('timestamp') }},
    {{ outbound_transfer.time_column('occurred_at') }},
    {{ outbound_transfer.column('data') }},
    {{ outbound_transfer.column('extra_fields') }},
    {{ outbound_transfer.column('raw') }},
    {{ outbound_transfer.column('cursor_from') }},
    {{ outbound_transfer.column('line_number') }},
    {{ outbound_transfer.time_column('loaded_at') }}
FROM numbered
WHERE occurrence = 1
