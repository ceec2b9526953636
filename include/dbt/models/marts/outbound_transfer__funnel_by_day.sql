{{ config(enabled=var('using_transfers', true)) }}

SELECT
    account,
    {{ outbound_transfer.utc_date('sent_at') }} AS sent_on,
    count(*) AS sent,
    count(CASE WHEN picked_up_count > 0 THEN 1 END) AS picked_up_by_any,
    count(CASE WHEN status = 'complete' THEN 1 END) AS complete,
    count(CASE WHEN status = 'expired' THEN 1 END) AS expired,
    count(CASE WHEN status = 'canceled' THEN 1 END) AS canceled,
    count(CASE WHEN status NOT IN ('complete', 'expired', 'canceled', 'deleted') THEN 1 END) AS outstanding,
    CAST(sum(CASE WHEN status IN ('canceled', 'deleted') THEN 0 ELSE recipient_count END)
        AS {{ dbt.type_bigint() }}) AS recipients,
    CAST(sum(CASE WHEN status IN ('canceled', 'deleted') THEN 0 ELSE picked_up_count END)
        AS {{ dbt.type_bigint() }}) AS recipients_picked_up
FROM {{ ref('stg_outbound_transfer__transfers') }}
GROUP BY account, {{ outbound_transfer.utc_date('sent_at') }}
