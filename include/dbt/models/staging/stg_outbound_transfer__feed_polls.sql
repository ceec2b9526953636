{{ config(enabled=not var('outbound_transfer_lake', false)) }}

SELECT
    {{ outbound_transfer.column('poll_id') }},
    {{ outbound_transfer.column('account') }},
    {{ outbound_transfer.time_column('polled_at') }},
    {{ outbound_transfer.column('action') }},
    {{ outbound_transfer.column('status') }},
    {{ outbound_transfer.column('events') }},
    {{ outbound_transfer.column('new_events') }},
    {{ outbound_transfer.column('rejected') }},
    {{ outbound_transfer.column('cursor_from') }},
    {{ outbound_transfer.column('cursor_to') }},
    {{ outbound_transfer.column('has_more') }},
    {{ outbound_transfer.column('note') }}
FROM {{ source('outbound_transfer', 'feed_polls') }}
