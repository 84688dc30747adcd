# The server on the CPU, for amd64 and arm64: ONNX Runtime, no torch. From the repository's root:
#     docker build -f docker/server_cpu.Dockerfile -t qa-server:cpu .
ARG BASE_IMAGE=python:3.11.13-slim-bookworm

# Everything is installed and the model is prepared here; what serving needs is copied from here.
FROM ${BASE_IMAGE} AS prepare
# PyTorch's own index has builds without the CUDA libraries; the others, where given, are pip's own.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PIP_FIND_LINKS
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
WORKDIR /app
COPY constraints.txt requirements-common.txt requirements-cpu.txt requirements-serve.txt ./
RUN python3 -m venv /opt/prepare \
    && /opt/prepare/bin/pip install --no-cache-dir -r requirements-cpu.txt
RUN python3 -m venv --without-pip /opt/serve \
    && /opt/prepare/bin/pip --python /opt/serve/bin/python install --no-cache-dir \
        -c constraints.txt -r requirements-serve.txt "$(grep '^onnxruntime==' requirements-cpu.txt)"
COPY prepare_model.py ./
COPY models models
COPY qa_service qa_service
ARG MODEL=builtin
# PyTorch's copy of the weights is left behind, and so are the locks of prepare_model.py.
RUN /opt/prepare/bin/python prepare_model.py --model "${MODEL}" \
    && rm -f saved_models/*/model.safetensors saved_models/.*.lock \
    && /opt/serve/bin/python -m compileall -q --invalidation-mode unchecked-hash qa_service

FROM ${BASE_IMAGE}
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
