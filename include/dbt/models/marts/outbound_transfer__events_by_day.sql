{%- set failed = var('outbound_transfer_failed_authentication_types', []) %}
SELECT
    account,
    {{ outbound_transfer.utc_date('coalesce(occurred_at, loaded_at)') }} AS occurred_on,
    type,
    count(*) AS events,
    {%- if failed %}
    count(CASE WHEN type IN (
        {%- for name in failed %}{{ dbt.string_literal(dbt.escape_single_quotes(name)) }}{{ ', ' if not loop.last }}{% endfor -%}
    ) THEN 1 END) AS failed_authentications
    {%- else %}
    CAST(NULL AS {{ dbt.type_bigint() }}) AS failed_authentications
    {%- endif %}
FROM {{ ref('stg_outbound_transfer__events') }}
GROUP BY account, {{ outbound_transfer.utc_date('coalesce(occurred_at, loaded_at)') }}, type
