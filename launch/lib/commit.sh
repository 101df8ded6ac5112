# shellcheck shell=bash
# Sourced after cluster.sh: resolves a commit of the clone, and where the bucket has its packages.

ROOT=${LAUNCH%/launch}

# Prints the full hash of a commit; empty: HEAD, with everything committed.
commit_of() {
    local revision=$1 says changed newline=$'\n' script=${0##*/}
    command -v git >/dev/null || refuse "git is not on PATH; $script sends a commit of a clone; install git"
    says=$(git -C "$LAUNCH" rev-parse --show-prefix 2>&1) && [[ $says == launch/ ]] ||
        refuse "$LAUNCH is not the launch folder of a clone of bert_jax, and $script needs a commit of one;" \
            "clone bert_jax and run launch/$script there (git: '${says//$newline/ }')"
    if [[ -z $revision ]]; then
        changed=$(git -C "$ROOT" status --porcelain) || exit 2
        changed=${changed%%"$newline"*}
        [[ -z $changed ]] ||
            refuse "$ROOT has uncommitted changes, such as '$changed', and $script needs a commit;" \
                "commit them, or leave them out with --revision=HEAD"
        revision=HEAD
    fi
    git -C "$ROOT" cat-file -e "$revision:launch/worker/on_worker_setup.sh" 2>/dev/null ||
        refuse "--revision=$revision is no commit of $ROOT that holds launch/worker/on_worker_setup.sh; see" \
            "git -C $ROOT log -- launch/worker/on_worker_setup.sh"
    git -C "$ROOT" rev-parse "$revision^{commit}"
}

# Prints a name for the packages of a commit: git's hashes of the two files that pin them.
digest_of() {
    local tpu uv
    tpu=$(git -C "$ROOT" rev-parse "$1:requirements/tpu.txt")
    uv=$(git -C "$ROOT" rev-parse "$1:requirements/uv.txt")
    echo "${tpu:0:12}-${uv:0:12}"
}

# wheelhouse DIGEST
wheelhouse() {
    echo "${BUCKET%/}/wheelhouse/$1"
}
