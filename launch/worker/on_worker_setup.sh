#!/usr/bin/env bash
# Runs on a worker, started by setup.sh: unpacks bert_jax and creates its Python 3.12 environment.
# on_worker_setup.sh ARCHIVE COMMIT FOLDER PYTHON [WHEELHOUSE], where PYTHON is VENV/bin/python, from
# FOLDER or absolute, and WHEELHOUSE the folder of wheelhouse.sh in a bucket
set -eEuo pipefail

readonly ARCHIVE=$1 COMMIT=$2 FOLDER=$3 PYTHON=$4 WHEELHOUSE=${5-}
readonly VERSION=3.12
# With a wheelhouse, packages come from nowhere else.
PIP_SOURCE=() UV_SOURCE=()

say() { echo "$HOSTNAME: $*"; }

refuse() {
    say "error: $*" >&2
    trap - ERR
    exit 2
}

trap 'say "error: setup failed at: $BASH_COMMAND" >&2' ERR

# A running training would have its code and packages changed.
refuse_while_training() {
    local script=$FOLDER/launch/worker/on_worker_train.sh status
    [[ -f $script ]] || return 0
    status=$(cd "$FOLDER" && bash launch/worker/on_worker_train.sh --status logs/train.log)
    [[ $status != running* ]] ||
        refuse "training runs in $FOLDER ($status); stop it first with launch/train.sh --stop"
}

# The list of unpacked files is kept, so that a later commit first removes them: a module left behind could still
# be imported.
unpack() {
    local archive
    archive=$(realpath "$ARCHIVE")
    mkdir -p "$FOLDER"
    cd "$FOLDER"
    [[ -d .sent || -z $(ls -A) ]] ||
        refuse "$PWD has files that setup.sh did not put there; set REMOTE_DIR in cluster.env to" \
            "another folder, or move them away"
    mkdir -p .sent
    tar -tzf "$archive" --quoting-style=literal | sed '/\/$/d' >.sent/new
    [[ ! -f .sent/files ]] || xargs -d '\n' rm -f -- <.sent/files
    mv .sent/new .sent/files
    tar -xzf "$archive"
    echo "$COMMIT" >.sent/commit
    rm "$archive"
}

fetch_wheelhouse() {
    command -v gcloud >/dev/null ||
        refuse "this worker has no gcloud to fetch $WHEELHOUSE; run setup.sh without --wheelhouse"
    mkdir -p .wheelhouse
    gcloud storage rsync --recursive "$WHEELHOUSE" .wheelhouse >.wheelhouse.log 2>&1 ||
        refuse "$WHEELHOUSE could not be fetched; may the TPU VM's service account read it?" \
            "gcloud: $(tail -n 3 .wheelhouse.log | tr '\n' ' ')"
    PIP_SOURCE=(--no-index "--find-links=$PWD/.wheelhouse/wheels")
    UV_SOURCE=(--offline "${PIP_SOURCE[@]}")
    # uv has the hash of the archive built in.
    export UV_PYTHON_INSTALL_MIRROR=file://$PWD/.wheelhouse/python
}

# pip's --target needs neither venv nor the right to write into the system's Python. uv has the hash of
# each Python that it fetches built in, so its own hash covers Python's.
get_uv() {
    local wanted
    wanted=$(sed -n 's/^uv==\([^ ;]*\).*/\1/p' requirements/uv.txt)
    [[ $(.uv/bin/uv --version 2>/dev/null || true) != "uv $wanted"* ]] || return 0
    python3 -m pip --version >/dev/null 2>&1 ||
        refuse "python3 has no pip, which is needed to fetch uv; on every worker run" \
            "'sudo apt-get update && sudo apt-get install --yes python3-pip', then setup.sh again"
    rm -rf .uv
    python3 -m pip --disable-pip-version-check --quiet install --target=.uv --no-deps \
        --only-binary=:all: --require-hashes "${PIP_SOURCE[@]}" --requirement=requirements/uv.txt
}

install() {
    local venv=${PYTHON%/bin/python}
    # uv removes every package that is not on its list: never point it at a system's Python.
    [[ ! -e $venv || -f $venv/pyvenv.cfg ]] ||
        refuse "$venv exists and is no virtual environment; set REMOTE_PYTHON in cluster.env to another" \
            "one, such as .venv/bin/python"
    [[ $("$PYTHON" --version 2>/dev/null || true) == "Python $VERSION."* ]] ||
        .uv/bin/uv venv --quiet --clear --python="$VERSION" "$venv"
    # The build constraint covers the setuptools that builds what has no wheel: it is checked likewise.
    .uv/bin/uv pip sync --quiet --compile-bytecode --python="$PYTHON" --require-hashes "${UV_SOURCE[@]}" \
        --build-constraints=requirements/tpu.txt requirements/tpu.txt
    .uv/bin/uv pip install --quiet --python="$PYTHON" --no-build-isolation --no-deps "${UV_SOURCE[@]}" \
        --editable .
}

refuse_while_training
unpack
say "unpacked commit $COMMIT in $PWD; installing the packages of requirements/tpu.txt"
if [[ -n $WHEELHOUSE ]]; then fetch_wheelhouse; fi
get_uv
install
# The TPU is not tried here: a slice answers only when all its workers ask together.
JAX_PLATFORMS=cpu "$PYTHON" -m bert_jax.train --config=configs/tiny.py --print_config >/dev/null
say "ready: $("$PYTHON" --version), $("$PYTHON" -c "import jax; print('jax', jax.__version__)")"
