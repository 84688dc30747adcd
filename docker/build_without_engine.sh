#!/usr/bin/env bash
# Builds an image where Docker is not installed and no image can be pulled, and tries it: on a
# base made of Debian packages it starts the server as compose.yaml does (read-only, no capability,
# no new privileges), asks it a question, runs the image's health check, and stops it by SIGTERM.
#
#     apt-get install -y buildah debootstrap podman runc
#     docker/build_without_engine.sh [cpu|gpu|gpu_lean]
#
# The images for a GPU are tried on the CPU.
#
# For root on Debian 12, with Python 3.11 and pip. Packages come from where this machine's apt and
# pip are told to look.
# Takes 4 GB in TMPDIR or /var/tmp (for a GPU 40), and leaves nothing there; KEEP=image.tar keeps the
# image.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-cpu} in
    cpu) FILE=server_cpu EXTRAS=cpu SERVE=serve,openvino ;;
    gpu) FILE=server_amd64 EXTRAS=gpu SERVE=gpu ;;
    gpu_lean) FILE=server_amd64 EXTRAS=cpu,serve-gpu SERVE=serve-gpu ;;
    *) echo "usage: $0 [cpu|gpu|gpu_lean]" >&2 && exit 2 ;;
esac
readonly FILE EXTRAS SERVE
readonly IMAGE=localhost/qa-server:${1:-cpu}
readonly PORT=9999 # the one that the image's health check asks
WORK=$(mktemp -d "${TMPDIR:-/var/tmp}/qa-image.XXXXXX")
readonly WORK
readonly STORE=(--root "$WORK/store" --runroot "$WORK/run" --storage-driver vfs)
export _CONTAINERS_USERNS_CONFIGURED=1 # root as we are: no user namespace of buildah's own

engine() {
    podman "${STORE[@]}" --cgroup-manager cgroupfs --runtime runc --log-level fatal "$@"
}

clean_up() {
    engine rm --force --ignore --time 0 qa >"$WORK/removed" 2>&1 || true
    # What an interrupted debootstrap has left mounted must not be deleted through.
    if mountpoint --quiet "$WORK/base/proc"; then umount "$WORK/base/proc"; fi
    if mountpoint --quiet "$WORK/base/sys"; then umount "$WORK/base/sys"; fi
    rm -rf --one-file-system "$WORK"
}

need() {
    local program
    for program in buildah debootstrap podman runc; do
        command -v "$program" >/dev/null || {
            echo "$program is missing: apt-get install -y buildah debootstrap podman runc" >&2
            exit 2
        }
    done
}

make_base() {
    local mirror base
    # shellcheck disable=SC2016 # apt expands it
    mirror=$(apt-get indextargets --format '$(REPO_URI)' \
        'Created-By: Packages' 'Codename: bookworm' 'Component: main' | head -n 1)
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
        bookworm "$WORK/base" ${mirror:+"$mirror"} >"$WORK/debootstrap.log" ||
        { tail -n 5 "$WORK/debootstrap.log" >&2 && return 1; }
    # What python's slim image leaves out too.
    rm -rf "$WORK"/base/usr/share/{doc,info,locale,man}/* \
        "$WORK"/base/var/{cache/apt,lib/apt/lists}/*
    base=$(buildah "${STORE[@]}" from scratch)
    buildah "${STORE[@]}" add --quiet "$base" "$WORK/base" / >/dev/null
    buildah "${STORE[@]}" commit --quiet --rm "$base" localhost/qa-base >/dev/null
    rm -rf "$WORK/base"
}

build_image() {
    python3 -m pip download --quiet --only-binary :all: --python-version 3.11 \
        --dest "$WORK/wheels" -c constraints.txt ".[$EXTRAS]" setuptools
    buildah "${STORE[@]}" bud --isolation chroot --format docker \
        --file "docker/$FILE.Dockerfile" --tag "$IMAGE" --build-arg SERVE="$SERVE" \
        --build-arg BASE_IMAGE=localhost/qa-base --build-arg PIP_EXTRA_INDEX_URL= \
        --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels \
        --volume "$WORK/wheels:/wheels:ro" .
}

start_server() {
    engine run --detach --pull never --name qa --network host \
        --read-only --cap-drop all --security-opt no-new-privileges "$IMAGE" \
        --host 127.0.0.1 --devices cpu
    for _ in $(seq 180); do # the first start may measure engines
        python3 client.py --port "$PORT" --health >"$WORK/health" 2>&1 && break
        sleep 1
    done
    cat "$WORK/health"
}

ask() {
    local answer
    answer=$(python3 client.py --port "$PORT" --question "Who wrote the notes?" \
        --text "Ada Lovelace wrote the notes in London in 1843.")
    echo "answer: $answer"
    [[ $answer == "Ada Lovelace" ]]
}

check_inside() {
    engine exec qa grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs)' /proc/1/status
    echo "health check: $(engine healthcheck run qa && echo healthy)"
}

stop_server() {
    local code
    engine stop --time 40 qa >/dev/null # SIGTERM to PID 1; SIGKILL, which gives 137, after 40 s
    code=$(engine inspect --format '{{.State.ExitCode}}' qa)
    engine logs qa
    echo "exit code after SIGTERM: $code"
    [[ $code == 0 ]]
}

need
trap clean_up EXIT
make_base
build_image
buildah "${STORE[@]}" images
start_server
ask
check_inside
stop_server
[[ -z ${KEEP:-} ]] || buildah "${STORE[@]}" push "$IMAGE" "docker-archive:$KEEP:${IMAGE#*/}"
echo "The image was built, asked and stopped."
