# shellcheck shell=bash
# Sourced after cluster.sh: which commit of the clone is meant, and where the bucket has its packages.

ROOT=${LAUNCH%/launch}

# Says the full hash of a commit; an empty one is HEAD, where everything is committed.
commit_of() {
    local revision=$1 says changed newline=$'\n' script=${0##*/}
    command -v git >/dev/null || refuse "git is not on PATH; $script takes a commit of a clone"
    says=$(git -C "$LAUNCH" rev-parse --show-prefix 2>&1) && [[ $says == launch/ ]] ||
        refuse "$LAUNCH is not the launch folder of a clone of bert_jax, and $script takes a commit of" \
            "one; clone bert_jax and run launch/$script there (git says: '${says//$newline/ }')"
    if [[ -z $revision ]]; then
        changed=$(git -C "$ROOT" status --porcelain) || exit 2
        changed=${changed%%"$newline"*}
        [[ -z $changed ]] ||
            refuse "$ROOT has changes that are not committed, such as '$changed', and $script takes a" \
                "commit; commit them, or leave them behind with --revision=HEAD"
        revision=HEAD
    fi
    git -C "$ROOT" cat-file -e "$revision:launch/on_worker_setup.sh" 2>/dev/null ||
        refuse "--revision=$revision is no commit of $ROOT that holds launch/on_worker_setup.sh; see" \
            "git -C $ROOT log -- launch/on_worker_setup.sh"
    git -C "$ROOT" rev-parse "$revision^{commit}"
}

# What names the packages of a commit: git's hashes of the two files that pin them.
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
