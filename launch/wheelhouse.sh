#!/usr/bin/env bash
# Copy to the bucket what setup.sh --wheelhouse installs on workers without internet.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=lib/commit.sh
source "$LAUNCH/lib/commit.sh"

usage() {
    cat <<'USAGE'
usage: launch/wheelhouse.sh [--dry-run] [--cluster=FILE] [--revision=COMMIT] [--python=PYTHON]

Downloads the packages of requirements/tpu.txt and uv.txt for a worker's platform, each checked against
its hash, and Python 3.12, into build/wheelhouse/DIGEST, and copies that to BUCKET/wheelhouse/DIGEST:
about 1 GB. DIGEST is computed from the two files of the commit: run it once for all commits with the same
packages. launch/setup.sh --wheelhouse then installs from there, and checks each hash again.

  --dry-run           print the commands instead of running them; URL and FILE stand for the archive of
                      Python that uv names
  --cluster=FILE      PROJECT and BUCKET (default: cluster.env beside this script)
  --revision=COMMIT   whose requirements (default: HEAD, with everything committed)
  --python=PYTHON     a Python, 3.10 or later, with pip (default: python3)

This machine needs the internet, git and curl. pip builds a package that has only sources, to read its
name.
Exit code: that of the command that failed; 2 if this script refuses.
Not yet run against a bucket of Google Cloud.
USAGE
}

# The platforms whose wheels a worker (glibc 2.31 or newer) can use, newest first.
readonly GLIBC='31 30 29 28 27 26 25 24 23 22 21 20 19 18 17 16 15 14 13 12 11 10 9 8 7 6 5'

# download PYTHON FOLDER
download() {
    local python=$1 folder=$2 minor platforms=() pip
    pip=("$python" -m pip --disable-pip-version-check)
    for minor in $GLIBC; do platforms+=("--platform=manylinux_2_${minor}_x86_64"); done
    platforms+=(--platform=manylinux2014_x86_64 --platform=manylinux2010_x86_64 --platform=manylinux1_x86_64)
    run_or_print "${pip[@]}" download --quiet --no-deps --prefer-binary --require-hashes \
        --implementation=cp --python-version=3.12 "${platforms[@]}" \
        "--dest=$folder/wheels" "--requirement=$folder/requirements/tpu.txt"
    run_or_print "${pip[@]}" download --quiet --no-deps --only-binary=:all: --require-hashes \
        --implementation=cp --python-version=3.10 "${platforms[@]}" \
        "--dest=$folder/wheels" "--requirement=$folder/requirements/uv.txt"
}

# The uv of that version knows the URL of its Python, and on the worker its hash.
download_python() {
    local python=$1 folder=$2 url file uv
    uv=("$folder/uv/bin/uv" python list 3.12 --only-downloads --all-platforms --all-arches
        --output-format=json)
    run_or_print "$python" -m pip --disable-pip-version-check install --quiet "--target=$folder/uv" \
        --upgrade --no-deps --only-binary=:all: --require-hashes "--requirement=$folder/requirements/uv.txt"
    if $DRY_RUN; then
        quoted "${uv[@]}"
        quoted curl --fail --silent --show-error --location --output "$folder/python/FILE" URL
        return
    fi
    url=$("${uv[@]}" |
        grep -o 'https://[^" ]*-x86_64-unknown-linux-gnu-install_only_stripped\.tar\.gz' | head -n 1) ||
        { echo "error: uv lists no Python 3.12 for x86 Linux" >&2 && return 1; }
    # uv looks for DATE/FILE in a mirror, as the address ends.
    file=${url##*/download/}
    file=${file//%2B/+}
    [[ $file =~ ^[A-Za-z0-9._+-]+/[A-Za-z0-9._+-]+$ && $url =~ ^[A-Za-z0-9:/._%+-]+$ && /$file/ != */../* ]] ||
        { escape_line "error: uv names the Python '$url', which is not DATE/FILE of a release" >&2 && return 1; }
    mkdir -p "$folder/python/${file%/*}"
    curl --fail --silent --show-error --location --output "$folder/python/$file" "$url"
}

main() {
    local revision='' python=python3 commit digest folder
    while (($#)); do
        case $1 in
            --revision=?*) revision=${1#*=} ;;
            --python=?*) python=${1#*=} ;;
            *) take_option "$1" || refuse_option wheelhouse.sh "$1" ;;
        esac
        shift
    done
    read_cluster
    check_settings PROJECT BUCKET
    [[ -n $BUCKET ]] || refuse "$CLUSTER: BUCKET is empty; set one, such as BUCKET=gs://my-bucket/bert"
    commit=$(commit_of "$revision")
    digest=$(digest_of "$commit")
    if ! $DRY_RUN; then
        check_gcloud
        "$python" -m pip --version >/dev/null 2>&1 ||
            refuse "--python=$python has no pip, which downloads the packages; try --python=.venv/bin/python"
        command -v curl >/dev/null || refuse "curl is not on PATH, which downloads Python; install it"
    fi

    folder=$ROOT/build/wheelhouse/$digest
    run_or_print mkdir -p "$folder/wheels"
    run_or_print git -C "$ROOT" archive "--output=$folder/requirements.tar" "$commit" requirements
    run_or_print tar -xf "$folder/requirements.tar" -C "$folder"
    download "$python" "$folder"
    download_python "$python" "$folder"
    # The last file tells setup.sh that nothing is missing.
    run_or_print gcloud storage rsync --recursive "$folder/wheels" "$(wheelhouse "$digest")/wheels" \
        "--project=$PROJECT"
    run_or_print gcloud storage rsync --recursive "$folder/python" "$(wheelhouse "$digest")/python" \
        "--project=$PROJECT"
    run_or_print gcloud storage cp "$folder/requirements/tpu.txt" "$(wheelhouse "$digest")/complete" \
        "--project=$PROJECT"
    $DRY_RUN || echo "Ready: launch/setup.sh$SAME_CLUSTER --wheelhouse"
}

main "$@"
