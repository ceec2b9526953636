{{ config(enabled=var('using_transfers', true)) }}

SELECT
    account,
    transfer_id,
    subject,
    status,
    {{ outbound_transfer.utc_date('sent_at') }} AS sent_on,
    expires_at,
    {{ outbound_transfer.seconds_between(outbound_transfer.utc_now(), 'expires_at') }} / 3600.0 AS hours_left,
    recipient_count - picked_up_count AS recipients_outstanding,
    CASE
        WHEN {{ outbound_transfer.seconds_between('sent_at', outbound_transfer.utc_now()) }}
            > {{ var('outbound_transfer_overdue_after', 72) | int }} * 3600.0
            THEN 1
        ELSE 0
    END AS overdue
FROM {{ ref('stg_outbound_transfer__transfers') }}
WHERE status NOT IN ('complete', 'expired', 'canceled', 'deleted')
ORDER BY expires_at
