#!/usr/bin/env bash
# Train a config from start to end on a TPU VM that is created for it and deleted afterwards.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cluster.sh"

usage() {
    cat <<'USAGE'
usage: launch/pod.sh CONFIG [OPTION ...] [--workdir=DIR] [TRAIN_FLAG ...]

Resolves CONFIG here, requests the TPU VM of cluster.env, sets it up, trains CONFIG on all its workers,
recreates it after a preemption, and deletes it at the end: all that launch/watch.sh does, with
--delete_at_end. After Ctrl-C, or a restart of this machine, the same command resumes the watch; training
itself continues meanwhile, and costs money.

  CONFIG             such as configs/base.py
  --dry-run          print the commands of one round instead of running them
  --cluster=FILE     all settings of cluster.env (default: cluster.env beside this script)
  --workdir=DIR      as in launch/watch.sh (default: BUCKET/runs/TPU_NAME)
  OPTION             any other of launch/watch.sh, such as --tries=N or --revision=COMMIT

Exit code: that of launch/watch.sh.
Not yet run against Google Cloud.
USAGE
}

main() {
    local config='' workdir='' rest=()
    while (($#)); do
        case $1 in
            --config=*) refuse "'$1' must be the first word instead: launch/pod.sh ${1#*=}" ;;
            --workdir=*) workdir=${1#*=} ;;
            -*) take_option "$1" || rest+=("$1") ;;
            *)
                [[ -z $config ]] ||
                    refuse "'$1' is a second config after '$config'; flags of training begin with --"
                config=$1
                ;;
        esac
        shift
    done
    [[ -n $config ]] || refuse "CONFIG is missing, such as launch/pod.sh configs/base.py; see launch/pod.sh --help"
    read_cluster
    check_settings TPU_NAME BUCKET
    [[ -n $workdir || -n $BUCKET ]] ||
        refuse "$CLUSTER: BUCKET is empty; set it, or add --workdir=DIR, on a disk that all workers share and that" \
            "outlives them"
    workdir=${workdir:-${BUCKET%/}/runs/$TPU_NAME}
    if $DRY_RUN; then rest+=(--dry-run); fi
    exec "$LAUNCH/watch.sh" "--cluster=$CLUSTER" --delete_at_end "--config=$config" "--workdir=$workdir" \
        ${rest[@]+"${rest[@]}"}
}

main "$@"
