#!/usr/bin/env bash
# Install a commit of bert_jax, Python 3.12 and the pinned packages on every worker of a TPU VM.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=lib/commit.sh
source "$LAUNCH/lib/commit.sh"

usage() {
    cat <<'USAGE'
usage: launch/setup.sh [--dry-run] [--cluster=FILE] [--revision=COMMIT] [--wheelhouse]

Sends a commit of the clone that holds this script to all workers and runs
launch/worker/on_worker_setup.sh there: it unpacks the commit in REMOTE_DIR and creates REMOTE_PYTHON with
Python 3.12 and the packages of requirements/tpu.txt, each checked against its hash. Run it again to
send another commit; files that only the previous commit had are removed. A worker that trains is left
unchanged.

  --dry-run           print the commands instead of running them
  --cluster=FILE      PROJECT, ZONE, TPU_NAME, BUCKET, INTERNAL_IPS, REMOTE_DIR and REMOTE_PYTHON
                      (default: cluster.env beside this script)
  --revision=COMMIT   what to send (default: HEAD, with everything committed)
  --wheelhouse        install uv, Python and packages from BUCKET, where launch/wheelhouse.sh put them:
                      workers then need no internet, but the bucket; INTERNAL_IPS=true says the same

Otherwise every worker needs the internet: PyPI for packages, GitHub for Python where it has no 3.12.
REMOTE_DIR is a folder of each worker's own, not a shared one. Each line of a worker opens with its
name, and gcloud says the number of one that fails.
Exit code: gcloud's, which is that of a worker that failed; 2 where this script refuses.
Not yet run on a real TPU VM.
USAGE
}

# Refuses if the bucket lacks packages of the commit.
check_wheelhouse() {
    local complete
    complete=$(wheelhouse "$1")/complete
    if $DRY_RUN; then
        quoted gcloud storage ls "$complete" "--project=$PROJECT"
    else
        gcloud storage ls "$complete" "--project=$PROJECT" >/dev/null ||
            refuse "$complete was not found, so the workers may lack packages; run" \
                "launch/wheelhouse.sh$SAME_CLUSTER first"
    fi
}

main() {
    local revision='' from_bucket=false commit archive name remote packages=''
    while (($#)); do
        case $1 in
            --revision=?*) revision=${1#*=} ;;
            --wheelhouse) from_bucket=true ;;
            *) take_option "$1" || refuse_option setup.sh "$1" ;;
        esac
        shift
    done
    read_cluster
    check_settings PROJECT ZONE TPU_NAME BUCKET INTERNAL_IPS REMOTE_DIR REMOTE_PYTHON
    [[ $REMOTE_PYTHON == *?/bin/python ]] ||
        refuse "$CLUSTER: REMOTE_PYTHON is '$REMOTE_PYTHON', but setup.sh creates a virtual environment," \
            "whose Python is FOLDER/bin/python; set it to .venv/bin/python"
    if [[ $INTERNAL_IPS == true ]]; then from_bucket=true; fi
    ! $from_bucket || [[ -n $BUCKET ]] ||
        refuse "$CLUSTER: BUCKET is empty, but workers install from it with --wheelhouse and with" \
            "INTERNAL_IPS=true; set one, such as BUCKET=gs://my-bucket/bert"
    commit=$(commit_of "$revision")
    $DRY_RUN || check_gcloud
    if $from_bucket; then
        check_wheelhouse "$(digest_of "$commit")"
        packages=" $(wheelhouse "$(digest_of "$commit")")"
    fi

    # build/ is what git ignores and make clean removes.
    name=bert_jax-$commit.tar.gz
    archive=$ROOT/build/launch/$name
    run_or_print mkdir -p "${archive%/*}"
    run_or_print git -C "$ROOT" archive --format=tar.gz "--output=$archive" "$commit"
    to_workers "$archive" "$name"
    remote="tar -xzOf $name launch/worker/on_worker_setup.sh >bert_jax-setup.sh"
    remote+=" && bash bert_jax-setup.sh $name $commit $REMOTE_DIR $REMOTE_PYTHON$packages"
    on_workers all "$remote"
    $DRY_RUN && return
    cat <<NEXT
$TPU_NAME has commit $commit. Next:
    launch/train.sh$SAME_CLUSTER --config=FILE --workdir=DIR
NEXT
}

main "$@"
