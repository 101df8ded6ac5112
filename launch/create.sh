#!/usr/bin/env bash
# Ask Google Cloud for the TPU VM that cluster.env describes.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"

usage() {
    cat <<'USAGE'
usage: launch/create.sh [--dry-run] [--cluster=FILE]

Asks for a TPU VM as a queued resource: Google Cloud makes it when there is room. Both get the name
TPU_NAME. The TPU VM costs money from the moment it exists until launch/delete.sh has deleted it,
whether it trains or not.

  --dry-run        print the gcloud command instead of running it
  --cluster=FILE   PROJECT, ZONE, TPU_NAME, ACCELERATOR_TYPE, RUNTIME_VERSION and SPOT
                   (default: cluster.env beside this script)

A spot TPU VM that Google Cloud has taken back leaves its queued resource SUSPENDED: run delete.sh,
then create.sh and setup.sh again.
Exit code: gcloud's; 2 where this script refuses.
Not yet run against Google Cloud.
USAGE
}

main() {
    local command
    while (($#)); do
        take_option "$1" || refuse_option create.sh "$1"
        shift
    done
    read_cluster
    check_settings PROJECT ZONE TPU_NAME ACCELERATOR_TYPE RUNTIME_VERSION SPOT
    $DRY_RUN || check_gcloud

    command=(gcloud compute tpus queued-resources create "$TPU_NAME" "--node-id=$TPU_NAME"
        "--accelerator-type=$ACCELERATOR_TYPE" "--runtime-version=$RUNTIME_VERSION"
        "--zone=$ZONE" "--project=$PROJECT")
    if [[ $SPOT == true ]]; then command+=(--spot); fi
    run_or_print "${command[@]}"
    $DRY_RUN && return
    cat <<NEXT
Asked for $TPU_NAME ($ACCELERATOR_TYPE). Its state:
    gcloud compute tpus queued-resources describe $TPU_NAME --zone=$ZONE --project=$PROJECT '--format=value(state.state)'
Once that says ACTIVE:
    launch/setup.sh$SAME_CLUSTER
$TPU_NAME costs money from then on, until:
    launch/delete.sh$SAME_CLUSTER
NEXT
}

main "$@"
