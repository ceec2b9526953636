# Airflow with this provider, in the very versions that it is tested with: the slim image brings Airflow's core only,
# and everything else comes from constraints.txt, which names one Airflow: pip refuses any other AIRFLOW_VERSION.
ARG AIRFLOW_VERSION=3.3.2
FROM apache/airflow:slim-${AIRFLOW_VERSION}
ARG AIRFLOW_VERSION

# Named volumes take their owner from these folders.
RUN mkdir -p /opt/airflow/auth /opt/airflow/sandbox

COPY --chown=airflow:0 pyproject.toml README.md LICENSE constraints.txt /opt/airflow/package/
COPY --chown=airflow:0 plugins /opt/airflow/package/plugins
COPY --chown=airflow:0 include /opt/airflow/package/include
COPY --chown=airflow:0 dags /opt/airflow/package/dags
RUN pip install --no-cache-dir --constraint /opt/airflow/package/constraints.txt \
        "/opt/airflow/package[sandbox,postgres,celery]" "apache-airflow[statsd]==${AIRFLOW_VERSION}" \
    && pip check
