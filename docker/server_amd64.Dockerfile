# The server on an NVIDIA GPU: both engines. From the repository's root:
#     docker build -f docker/server_amd64.Dockerfile -t qa-server:gpu .
# onnxruntime-gpu 1.31.1 is built for CUDA 13.0 and cuDNN 9, as torch 2.13.0 is; the first takes
# them from this base, the second brings its own. CUDA 13 needs a driver of release 580 or later.
ARG BASE_IMAGE=nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04

# Ubuntu's Python is one version per release: 3.12, whose patches are security fixes.
FROM ${BASE_IMAGE} AS python
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends 'python3=3.12.*' \
    && rm -rf /var/lib/apt/lists/*

FROM python AS prepare
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        'python3-venv=3.12.*' \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY constraints.txt requirements-common.txt requirements-serve.txt requirements.txt ./
RUN python3 -m venv /opt/serve \
    && /opt/serve/bin/pip install --no-cache-dir -r requirements.txt
COPY prepare_model.py ./
COPY models models
COPY qa_service qa_service
ARG MODEL=builtin
RUN /opt/serve/bin/python prepare_model.py --model "${MODEL}" \
    && rm -f saved_models/.*.lock \
    && /opt/serve/bin/python -m compileall -q --invalidation-mode unchecked-hash qa_service

FROM python
RUN groupadd --gid 10001 qa \
    && useradd --uid 10001 --gid qa --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin qa
WORKDIR /app
COPY --from=prepare /opt/serve /opt/serve
COPY --from=prepare /app/qa_service qa_service
COPY --from=prepare /app/saved_models saved_models
# Only what batches cost here is written beside a model, if at all: see compose.yaml's volume.
RUN for model in saved_models/*/; do install -d -o qa -g qa "${model}costs"; done
COPY models/builtin/MODEL_CARD.md models/builtin/
COPY LICENSE client.py server.py ./
ENV ORT_DISABLE_TELEMETRY=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 9999
# A server with TLS or tokens needs a health check that has them too: docker/compose.tls.yaml.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["/opt/serve/bin/python", "client.py", "--health", "--timeout_s", "4"]
ENTRYPOINT ["/opt/serve/bin/python", "server.py", "--host", "0.0.0.0"]
