{#- Columns of the sources. Some of their names are reserved words in some databases. -#}

{% macro column(name) -%}
    {{ outbound_transfer.source_name(name) }} AS {{ name }}
{%- endmacro %}

{% macro time_column(name) -%}
    {{ outbound_transfer.as_timestamp(outbound_transfer.source_name(name)) }} AS {{ name }}
{%- endmacro %}

{% macro source_name(name) -%}
    {{ return(adapter.dispatch('source_name', 'outbound_transfer')(name)) }}
{%- endmacro %}

{% macro default__source_name(name) -%}
    {{ adapter.quote(name) }}
{%- endmacro %}

{#- A quoted name is one in lower case there, and others are in upper case. -#}
{% macro snowflake__source_name(name) -%}
    {{ adapter.quote(name) if var('outbound_transfer_quote_names', false) else name }}
{%- endmacro %}
