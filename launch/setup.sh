#!/usr/bin/env bash
# Bring a commit of bert_jax, Python 3.12 and the pinned packages onto every worker of a TPU VM.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"

usage() {
    cat <<'USAGE'
usage: launch/setup.sh [--dry-run] [--cluster=FILE] [--revision=COMMIT]

Sends a commit of the clone that this script lies in to all workers and runs
launch/on_worker_setup.sh there: it unpacks the commit in REMOTE_DIR and makes REMOTE_PYTHON with
Python 3.12 and the packages of requirements/tpu.txt, each checked against its hash. Run it again to
send another commit; files that the former commit had and the new one lacks go away.

  --dry-run           print the commands instead of running them
  --cluster=FILE      PROJECT, ZONE, TPU_NAME, REMOTE_DIR and REMOTE_PYTHON (default: cluster.env
                      beside this script)
  --revision=COMMIT   what to send, such as HEAD, which is the default where everything is committed

Every worker needs the internet: PyPI for packages, GitHub for Python where it has no 3.12. REMOTE_DIR
is a folder of each worker's own, not a shared one.
Exit code: gcloud's, which is that of a worker that failed; 2 where this script refuses.
Not yet run on a real TPU VM.
USAGE
}

# Says the full hash of the commit to send.
commit_of() {
    local revision=$1 says changed newline=$'\n'
    local root=${LAUNCH%/launch}
    command -v git >/dev/null || refuse "git is not on PATH; setup.sh sends a commit of a clone"
    says=$(git -C "$LAUNCH" rev-parse --show-prefix 2>&1) && [[ $says == launch/ ]] ||
        refuse "$LAUNCH is not the launch folder of a clone of bert_jax, and setup.sh sends a commit of" \
            "one; clone bert_jax and run launch/setup.sh there (git says: '${says//$newline/ }')"
    if [[ -z $revision ]]; then
        changed=$(git -C "$root" status --porcelain) || exit 2
        changed=${changed%%"$newline"*}
        [[ -z $changed ]] ||
            refuse "$root has changes that are not committed, such as '$changed', and setup.sh sends a" \
                "commit; commit them, or leave them behind with --revision=HEAD"
        revision=HEAD
    fi
    git -C "$root" cat-file -e "$revision:launch/on_worker_setup.sh" 2>/dev/null ||
        refuse "--revision=$revision is no commit of $root that holds launch/on_worker_setup.sh; see" \
            "git -C $root log -- launch/on_worker_setup.sh"
    git -C "$root" rev-parse "$revision^{commit}"
}

main() {
    local revision='' commit archive name remote
    while (($#)); do
        case $1 in
            --revision=?*) revision=${1#*=} ;;
            *) take_option "$1" || refuse_option setup.sh "$1" ;;
        esac
        shift
    done
    read_cluster
    check_settings PROJECT ZONE TPU_NAME INTERNAL_IPS REMOTE_DIR REMOTE_PYTHON
    [[ $REMOTE_PYTHON == *?/bin/python ]] ||
        refuse "$CLUSTER: REMOTE_PYTHON is '$REMOTE_PYTHON', but setup.sh makes a virtual environment," \
            "whose Python is FOLDER/bin/python; give it as .venv/bin/python"
    commit=$(commit_of "$revision")
    $DRY_RUN || check_gcloud

    # build/ is what git ignores and make clean removes.
    name=bert_jax-$commit.tar.gz
    archive=${LAUNCH%/launch}/build/launch/$name
    run_or_print mkdir -p "${archive%/*}"
    run_or_print git -C "${LAUNCH%/launch}" archive --format=tar.gz "--output=$archive" "$commit"
    to_workers "$archive" "$name"
    remote="tar -xzOf $name launch/on_worker_setup.sh >bert_jax-setup.sh"
    remote+=" && bash bert_jax-setup.sh $name $commit $REMOTE_DIR $REMOTE_PYTHON"
    on_workers all "$remote"
    $DRY_RUN && return
    cat <<NEXT
$TPU_NAME has commit $commit. Next:
    launch/train.sh$SAME_CLUSTER --config=FILE --workdir=DIR
NEXT
}

main "$@"
