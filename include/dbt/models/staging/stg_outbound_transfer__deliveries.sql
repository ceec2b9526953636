{{ config(enabled=var('using_deliveries', true)) }}

SELECT
    {{ outbound_transfer.column('account') }},
    {{ outbound_transfer.column('transfer_id') }},
    {{ outbound_transfer.column('conn_id') }},
    {{ outbound_transfer.column('dag_id') }},
    {{ outbound_transfer.column('task_id') }},
    {{ outbound_transfer.column('run_id') }},
    {{ outbound_transfer.column('map_index') }},
    {{ outbound_transfer.column('try_number') }},
    {{ outbound_transfer.column('subject') }},
    {{ outbound_transfer.column('status') }},
    {{ outbound_transfer.column('error') }},
    {{ outbound_transfer.column('files') }},
    {{ outbound_transfer.column('size_bytes') }},
    {{ outbound_transfer.column('recipient_count') }},
    {{ outbound_transfer.column('picked_up_count') }},
    {{ outbound_transfer.time_column('created_at') }},
    {{ outbound_transfer.time_column('sent_at') }},
    {{ outbound_transfer.time_column('expires_at') }},
    {{ outbound_transfer.time_column('finished_at') }},
    {{ outbound_transfer.time_column('updated_at') }}
FROM {{ source('outbound_transfer', 'deliveries') }}
