#!/usr/bin/env bash
# Start training on every worker of an existing TPU VM and show its output until it ends.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"

usage() {
    cat <<'USAGE'
usage: launch/train.sh [--dry-run] [--cluster=FILE] --config=FILE --workdir=DIR [TRAIN_FLAG ...]

Runs `python -m bert_jax.train --multihost` with the flags from --config on, on all workers of the
TPU VM that FILE names, and adds each worker's output to its REMOTE_DIR/logs/train.log, which
launch/logs.sh shows.

  --dry-run        print the gcloud command instead of running it
  --cluster=FILE   PROJECT, ZONE, TPU_NAME, REMOTE_DIR and REMOTE_PYTHON (default: cluster.env
                   beside this script)
  --workdir=DIR    a folder that all workers share, such as an NFS mount: a checkpoint is written
                   by all of them together

The TPU VM must exist, with bert_jax in REMOTE_DIR on every worker: launch/setup.sh puts it there. The
run hangs on this command. It is to be expected that a worker whose connection breaks ends at its next
line of output; gcloud then connects again, up to ten times, and starts the command on that worker
anew. Stop it with Ctrl-C then and start the whole run again: it goes on from the last checkpoint. The
command line ends up in gcloud's log and in the workers' process lists: put no secret into it.
Exit code: gcloud's, which is that of a worker that failed; 2 where this script refuses.
Not yet run on a real TPU VM.
USAGE
}

has_flag() {
    local name=$1 argument
    shift
    for argument in "$@"; do
        [[ $argument == "$name="?* ]] && return
    done
    return 1
}

main() {
    local flags=(--multihost) remote
    while (($#)); do
        take_option "$1" || flags+=("$1")
        shift
    done
    has_flag --config "${flags[@]}" ||
        refuse "--config=FILE is missing, such as --config=configs/base.py; see launch/train.sh --help"
    has_flag --workdir "${flags[@]}" ||
        refuse "--workdir=DIR is missing, a folder that all workers share; see launch/train.sh --help"
    read_cluster
    check_settings PROJECT ZONE TPU_NAME INTERNAL_IPS REMOTE_DIR REMOTE_PYTHON
    $DRY_RUN || check_gcloud

    # -u, as output into a pipe would else come in blocks; pipefail, as tee always succeeds.
    remote="cd $(quoted "$REMOTE_DIR") && mkdir -p ${LOG%/*} && date -u \"+%FT%TZ train.sh\" >>$LOG"
    remote+=" && set -o pipefail && $(quoted "$REMOTE_PYTHON" -u -m bert_jax.train "${flags[@]}")"
    remote+=" 2>&1 | tee -a $LOG"
    on_workers all "$remote"
}

main "$@"
