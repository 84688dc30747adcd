# The server on an NVIDIA GPU, with both engines. From the repository's root:
#     docker build -f docker/server_amd64.Dockerfile -t qa-server:gpu .
# With --build-arg SERVE=serve-gpu it has ONNX Runtime alone, without torch.
# CUDA 13 and cuDNN 9 come from PyPI, one copy for both engines, so the base is the CPU image's; what
# the host brings is the driver, of release 580 or later, and the NVIDIA Container Toolkit.
ARG BASE_IMAGE=python:3.11.13-slim-bookworm

FROM ${BASE_IMAGE} AS prepare
# What the lean variant's model is prepared with: cpu,models for another than the built-in one.
ARG PREPARE=cpu
# PyTorch's own index has builds without CUDA.
ARG CPU_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PIP_FIND_LINKS
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ARG SERVE=gpu
WORKDIR /src
# The dependencies first, in layers that are kept until these files change.
COPY LICENSE constraints.txt pyproject.toml ./
COPY qa_service/__init__.py qa_service/
RUN touch README.md \
    && python3 -m venv /opt/serve \
    && /opt/serve/bin/pip install --no-cache-dir -c constraints.txt ".[${SERVE}]"
RUN if [ "${SERVE}" = gpu ]; then ln -s serve /opt/prepare; else \
        python3 -m venv /opt/prepare \
        && /opt/prepare/bin/pip install --no-cache-dir --extra-index-url "${CPU_INDEX_URL}" \
            -c constraints.txt ".[${PREPARE}]"; \
    fi
COPY models models
COPY qa_service qa_service
RUN for python in /opt/prepare/bin/python /opt/serve/bin/python; do \
        /opt/prepare/bin/pip --python "${python}" install --no-cache-dir --no-deps \
            --force-reinstall . || exit 1; \
    done
WORKDIR /app
ARG MODEL=builtin
# Half precision is for the GPU; PyTorch's copy of the weights is only for its engine.
RUN /opt/prepare/bin/qa-prepare-model --model "${MODEL}" --output_dir saved_models \
        --precision fp16 \
    && rm -f saved_models/.*.lock \
    && { [ "${SERVE}" = gpu ] || rm -f saved_models/*/model.safetensors; }

FROM ${BASE_IMAGE}
RUN groupadd --gid 10001 qa \
    && useradd --uid 10001 --gid qa --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin qa
WORKDIR /app
COPY --from=prepare /opt/serve /opt/serve
COPY --from=prepare /app/saved_models saved_models
# The server writes only what batches cost, in a model's folder: compose.yaml has a volume for it.
RUN for model in saved_models/*/; do install -d -o qa -g qa "${model}costs"; done
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_VISIBLE_DEVICES=all \
    ORT_DISABLE_TELEMETRY=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 9999
# A server with TLS or tokens needs a health check that has them too: docker/compose.tls.yaml.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["/opt/serve/bin/qa-client", "--health", "--timeout_s", "4"]
ENTRYPOINT ["/opt/serve/bin/qa-server", "--host", "0.0.0.0"]
