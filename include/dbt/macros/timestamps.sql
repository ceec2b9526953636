{#- A timestamp of a source, which is text (ISO 8601, UTC) in some databases. -#}
{% macro as_timestamp(value) -%}
    {{ return(adapter.dispatch('as_timestamp', 'outbound_transfer')(value)) }}
{%- endmacro %}

{% macro default__as_timestamp(value) -%}
    CAST({{ value }} AS {{ dbt.type_timestamp() }})
{%- endmacro %}

{% macro postgres__as_timestamp(value) -%}
    CAST({{ value }} AS timestamptz)
{%- endmacro %}

{% macro duckdb__as_timestamp(value) -%}
    CAST({{ value }} AS timestamptz)
{%- endmacro %}

{#- In UTC and without a zone, as `getdate()`. -#}
{% macro redshift__as_timestamp(value) -%}
    CAST({{ value }} AS timestamptz) AT TIME ZONE 'UTC'
{%- endmacro %}

{#- In UTC and without a zone, as `sysdate()`: otherwise the session's zone would take part in differences. -#}
{% macro snowflake__as_timestamp(value) -%}
    CAST(convert_timezone('UTC', CAST({{ value }} AS timestamp_tz)) AS timestamp_ntz)
{%- endmacro %}


{#- The current time, to compare with those timestamps. -#}
{% macro utc_now() -%}
    {{ return(adapter.dispatch('utc_now', 'outbound_transfer')()) }}
{%- endmacro %}

{% macro default__utc_now() -%}
    {{ dbt.current_timestamp() }}
{%- endmacro %}

{% macro snowflake__utc_now() -%}
    sysdate()
{%- endmacro %}


{#- The day in UTC. -#}
{% macro utc_date(value) -%}
    {{ return(adapter.dispatch('utc_date', 'outbound_transfer')(value)) }}
{%- endmacro %}

{% macro default__utc_date(value) -%}
    CAST({{ value }} AS date)
{%- endmacro %}

{% macro postgres__utc_date(value) -%}
    CAST({{ value }} AT TIME ZONE 'UTC' AS date)
{%- endmacro %}

{% macro duckdb__utc_date(value) -%}
    CAST({{ value }} AT TIME ZONE 'UTC' AS date)
{%- endmacro %}

{% macro redshift__utc_date(value) -%}
    {{ outbound_transfer.default__utc_date(value) }}
{%- endmacro %}

{% macro databricks__utc_date(value) -%}
    CAST(to_utc_timestamp({{ value }}, current_timezone()) AS date)
{%- endmacro %}


{#- Seconds from the one to the other, with fractions: a 64-bit float, which the contracts of the marts name. -#}
{% macro seconds_between(first, last) -%}
    {{ return(adapter.dispatch('seconds_between', 'outbound_transfer')(first, last)) }}
{%- endmacro %}

{% macro default__seconds_between(first, last) -%}
    CAST({{ dbt.datediff(first, last, 'microsecond') }} AS {{ dbt.type_float() }}) / 1000000.0
{%- endmacro %}

{% macro postgres__seconds_between(first, last) -%}
    CAST(EXTRACT(EPOCH FROM {{ last }} - {{ first }}) AS double precision)
{%- endmacro %}

{% macro duckdb__seconds_between(first, last) -%}
    epoch({{ last }} - {{ first }})
{%- endmacro %}

{% macro redshift__seconds_between(first, last) -%}
    {{ outbound_transfer.default__seconds_between(first, last) }}
{%- endmacro %}

{#- The adapter's `datediff` depends on the version of a running cluster. -#}
{% macro databricks__seconds_between(first, last) -%}
    CAST(unix_micros({{ last }}) - unix_micros({{ first }}) AS double) / 1000000.0
{%- endmacro %}
