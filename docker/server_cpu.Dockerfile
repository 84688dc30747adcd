# The server on the CPU, for amd64 and arm64: ONNX Runtime and OpenVINO, whose int8 is the engine that
# `auto` takes on most processors; no torch. From the repository's root:
#     docker build -f docker/server_cpu.Dockerfile -t qa-server:cpu .
# With --build-arg SERVE=serve it has ONNX Runtime alone.
ARG BASE_IMAGE=python:3.11.13-slim-bookworm

# Installs everything and prepares the model; the last stage copies what serving needs.
FROM ${BASE_IMAGE} AS prepare
# Another model than the built-in one is prepared with PyTorch: PREPARE=cpu,models, and
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu has it without the CUDA libraries.
ARG PREPARE=cpu
# Where given, these are pip's.
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ARG SERVE=serve,openvino
WORKDIR /src
# The dependencies first, in layers that are kept until these files change.
COPY LICENSE constraints.txt pyproject.toml ./
COPY qa_service/__init__.py qa_service/
RUN touch README.md \
    && python3 -m venv /opt/prepare \
    && /opt/prepare/bin/pip install --no-cache-dir -c constraints.txt ".[${PREPARE}]"
RUN python3 -m venv --without-pip /opt/serve \
    && /opt/prepare/bin/pip --python /opt/serve/bin/python install --no-cache-dir \
        -c constraints.txt ".[${SERVE}]"
COPY models models
COPY qa_service qa_service
RUN for python in /opt/prepare/bin/python /opt/serve/bin/python; do \
        /opt/prepare/bin/pip --python "${python}" install --no-cache-dir --no-deps \
            --force-reinstall . || exit 1; \
    done
WORKDIR /app
ARG MODEL=builtin
# Removes what only preparing needs, what no engine of the image runs (OpenVINO's parts for other devices
# and other formats), the hub's downloads, and the libraries' own tests.
RUN /opt/prepare/bin/qa-prepare-model --model "${MODEL}" --output_dir saved_models \
    && rm -f saved_models/*/model.safetensors \
    && case "${SERVE}" in *openvino*) ;; *) rm -f saved_models/*/model.openvino_int8.onnx ;; esac \
    && rm -rf saved_models/*/costs saved_models/.*.lock \
    && packages="$(echo /opt/serve/lib/python*/site-packages)" \
    && rm -rf "${packages}"/qa_service/data/models/* "${packages}"/hf_xet* \
        "${packages}"/openvino/libs/libopenvino_intel_[gn]pu_plugin.so \
        "${packages}"/openvino/libs/libopenvino_[gjpt]*_frontend.so.* \
        "${packages}"/openvino/libs/cache.json \
        "${packages}"/onnxruntime/datasets "${packages}"/onnxruntime/quantization \
        "${packages}"/onnxruntime/tools "${packages}"/onnxruntime/transformers \
    && find "${packages}" -type d -name tests -prune -exec rm -rf {} +

FROM ${BASE_IMAGE}
RUN groupadd --gid 10001 qa \
    && useradd --uid 10001 --gid qa --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin qa
WORKDIR /app
COPY --from=prepare /opt/serve /opt/serve
COPY --from=prepare /app/saved_models saved_models
# The server writes only what batches cost, in a model's folder: compose.yaml has a volume for it.
RUN for model in saved_models/*/; do install -d -o qa -g qa "${model}costs"; done
ENV ORT_DISABLE_TELEMETRY=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 9999
# A server with TLS or tokens needs a health check that has them too: docker/compose.tls.yaml.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["/opt/serve/bin/qa-client", "--health", "--timeout_s", "4"]
ENTRYPOINT ["/opt/serve/bin/qa-server", "--host", "0.0.0.0"]
