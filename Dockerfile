# Two images from one file: `api` (small, no torch) and `worker` (CPU torch; on GPU hosts build with TORCH_INDEX).
FROM python:3.11-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --create-home --uid 10001 lockstep && mkdir -p /data && chown lockstep /data
WORKDIR /srv/lockstep
COPY pyproject.toml README.md alembic.ini ./
COPY lockstep ./lockstep
COPY app ./app
COPY migrations ./migrations
COPY worker ./worker

FROM base AS api
RUN pip install -e ".[server,sqlite]"
USER 10001
ENV LOCKSTEP_DATA_DIR=/data
VOLUME /data
EXPOSE 7480
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7480/healthz', timeout=4)"]
CMD ["lockstep", "serve"]

FROM base AS worker
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --extra-index-url "${TORCH_INDEX}" "torch>=2.11,<2.15" && pip install -e ".[worker,gym]"
USER 10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "worker"]
CMD ["--device", "auto"]
