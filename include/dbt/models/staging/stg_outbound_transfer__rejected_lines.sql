{%- set is_lake = var('outbound_transfer_lake', false) -%}
-- As with events: without an enforced key, the first that was loaded counts.
WITH numbered AS (
    SELECT
        source.*,
        row_number() OVER (
            PARTITION BY
                {{ outbound_transfer.source_name('account') }},
                {{ outbound_transfer.source_name('cursor_from') }},
                {{ outbound_transfer.source_name('line_number') }}
            ORDER BY {{ outbound_transfer.source_name('loaded_at') }}
        ) AS occurrence
    FROM {{ source('outbound_transfer', 'events' if is_lake else 'rejected_lines') }} AS source
    {%- if is_lake %}
    WHERE {{ outbound_transfer.source_name('rejected_reason') }} IS NOT NULL
    {%- endif %}
)
SELECT
    {{ outbound_transfer.column('account') }},
    {%- if not is_lake %}
    {{ outbound_transfer.column('line_digest') }},
    {%- endif %}
    {{ outbound_transfer.column('cursor_from') }},
    {{ outbound_transfer.column('line_number') }},
    {{ outbound_transfer.source_name('rejected_line' if is_lake else 'raw') }} AS raw,
    {{ outbound_transfer.source_name('rejected_reason' if is_lake else 'reason') }} AS reason,
    {{ outbound_transfer.time_column('loaded_at') }}
FROM numbered
WHERE occurrence = 1
