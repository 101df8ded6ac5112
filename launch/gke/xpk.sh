#!/usr/bin/env bash
# Train on the TPU slice of cluster.env in a GKE cluster, through XPK.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=../lib/gke_machine.sh
source "$LAUNCH/lib/gke_machine.sh"

usage() {
    cat <<'USAGE'
usage: launch/gke/xpk.sh [--dry-run] [--cluster=FILE] [--max_restarts=N] --config=FILE
                         --workdir=gs://BUCKET/DIR [TRAIN_FLAG ...]

Runs `xpk workload create` for a workload TPU_NAME that trains with the flags from --config on, on the
cluster GKE_CLUSTER, which `xpk cluster create` or an administrator created.

  --dry-run          print the xpk command instead of running it
  --cluster=FILE     PROJECT, ZONE (the cluster's), TPU_NAME, PRESET or ACCELERATOR_TYPE and
                     RUNTIME_VERSION, SPOT, COORDINATOR_PORT, GKE_CLUSTER and GKE_IMAGE (default:
                     cluster.env)
  --max_restarts=N   restart all pods at most so often (default: 100); preemptions count too

The config is resolved here first (BERT_JAX_PYTHON as in launch/train.sh); the image has its own copy.
Once one pod fails, all are recreated and resume from the newest checkpoint, except after exit codes 2 and 3
(bert_jax/runtime/exit_codes.py), which a restart would repeat. `xpk workload delete` ends it. Everybody can
read the flags in the cluster: put no secret into them.
Exit code: xpk's; 2 if this script refuses.
Tested with xpk 1.16.0 up to the manifest that it writes, not on a cluster.
Not yet run on a cluster.
USAGE
}

# xpk restarts after 42 and 127 to 255; of ours, 1 and 86 are missing there.
readonly RESTART_CODES=1,86

create() {
    local max_restarts=$1 port='' command
    shift
    [[ -z $COORDINATOR_PORT ]] || port="JAX_COORDINATOR_PORT=$COORDINATOR_PORT "
    command=(xpk workload create "--workload=$TPU_NAME" "--cluster=$GKE_CLUSTER" "--project=$PROJECT"
        "--zone=$ZONE" "--tpu-type=$ACCELERATOR_TYPE" "--docker-image=$GKE_IMAGE"
        "--max-restarts=$max_restarts" "--restart-on-exit-codes=$RESTART_CODES"
        --termination-grace-period-seconds=60
        "--command=${port}exec $(quoted python -u -m bert_jax.train --multihost "$@")")
    if [[ $SPOT == true ]]; then command+=(--spot); fi
    run_or_print "${command[@]}"
}

main() {
    read_flags "$@"
    read_cluster
    check_settings PROJECT ZONE TPU_NAME ACCELERATOR_TYPE SPOT COORDINATOR_PORT GKE_CLUSTER GKE_IMAGE
    find_machine
    check_workload ${flags[@]+"${flags[@]}"}
    check_config '' "${flags[@]}"
    if ! $DRY_RUN; then
        command -v xpk >/dev/null ||
            refuse "xpk is not on PATH; install it (pip install xpk), or print the command with --dry-run"
        check_gcloud
    fi
    create "$max_restarts" "${flags[@]}"
}

main "$@"
