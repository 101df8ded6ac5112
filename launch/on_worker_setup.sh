#!/usr/bin/env bash
# Runs on a worker, started by setup.sh: unpacks bert_jax and makes its Python 3.12 environment.
# on_worker_setup.sh ARCHIVE COMMIT FOLDER PYTHON, where PYTHON is VENV/bin/python, from FOLDER or absolute
set -euo pipefail

readonly ARCHIVE=$1 COMMIT=$2 FOLDER=$3 PYTHON=$4
readonly VERSION=3.12
readonly RIGHT_VERSION="import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$VERSION')"

say() { echo "$HOSTNAME: $*"; }

refuse() {
    say "error: $*" >&2
    exit 2
}

# The list of what was unpacked is kept, so that files which a later commit no longer has can go:
# a module left behind could still be imported.
unpack() {
    local archive name
    archive=$(realpath "$ARCHIVE")
    mkdir -p "$FOLDER"
    cd "$FOLDER"
    [[ -d .sent || -z $(ls -A) ]] ||
        refuse "$PWD holds files that setup.sh did not put there; set REMOTE_DIR in cluster.env to" \
            "another folder, or move them away"
    mkdir -p .sent
    tar -tzf "$archive" --quoting-style=literal | sed '/\/$/d' | LC_ALL=C sort >.sent/new
    if [[ -f .sent/files ]]; then
        LC_ALL=C comm -23 .sent/files .sent/new | while IFS= read -r name; do rm -f -- "$name"; done
    fi
    mv .sent/new .sent/files
    tar -xzf "$archive"
    echo "$COMMIT" >.sent/commit
    rm "$archive"
}

# pip's --target needs neither venv nor the right to write into the system's Python. uv has the hash of
# each Python that it fetches built in, so its own hash covers Python's.
get_uv() {
    local wanted
    wanted=$(sed -n 's/^uv==\([^ ;]*\).*/\1/p' requirements/uv.txt)
    [[ $(.uv/bin/uv --version 2>/dev/null) != "uv $wanted"* ]] || return 0
    python3 -m pip --version >/dev/null 2>&1 ||
        refuse "python3 has no pip, which is needed to fetch uv; on every worker run" \
            "'sudo apt-get update && sudo apt-get install --yes python3-pip', then setup.sh again"
    rm -rf .uv
    python3 -m pip --disable-pip-version-check --quiet install --target=.uv --no-deps \
        --only-binary=:all: --require-hashes --requirement=requirements/uv.txt
}

install() {
    local venv=${PYTHON%/bin/python}
    # What uv finds there beside its list, it removes: never from a system's Python.
    [[ ! -e $venv || -f $venv/pyvenv.cfg ]] ||
        refuse "$venv exists and is no virtual environment; set REMOTE_PYTHON in cluster.env to another" \
            "one, such as .venv/bin/python"
    "$PYTHON" -c "$RIGHT_VERSION" 2>/dev/null ||
        .uv/bin/uv venv --quiet --clear --python="$VERSION" "$venv"
    # The build constraint covers the setuptools that builds what has no wheel: it is checked likewise.
    .uv/bin/uv pip sync --quiet --compile-bytecode --python="$PYTHON" --require-hashes \
        --build-constraints=requirements/tpu.txt requirements/tpu.txt
    .uv/bin/uv pip install --quiet --python="$PYTHON" --no-build-isolation --no-deps --editable .
}

unpack
say "unpacked commit $COMMIT in $PWD; installing the packages of requirements/tpu.txt"
get_uv
install
# The TPU is left alone: a slice answers only when all its workers ask together.
JAX_PLATFORMS=cpu "$PYTHON" -m bert_jax.train --config=configs/tiny.py --print_config >/dev/null
say "ready: $("$PYTHON" --version), $("$PYTHON" -c "import jax; print('jax', jax.__version__)")"
