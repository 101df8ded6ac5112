#!/usr/bin/env bash
# Request the TPU VM that cluster.env describes from Google Cloud.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=lib/queued_resource.sh
source "$LAUNCH/lib/queued_resource.sh"

usage() {
    cat <<'USAGE'
usage: launch/create.sh [--dry-run] [--cluster=FILE] [--wait[=TIME]] [--poll_secs=N]

Requests a TPU VM as a queued resource: Google Cloud creates it when it has capacity. Both are named
TPU_NAME and labelled launched_by=LABEL; without that label delete.sh deletes nothing. The TPU VM costs
money from its creation until launch/delete.sh deletes it, whether it trains or not.

  --dry-run        print the gcloud commands instead of running them
  --cluster=FILE   PROJECT, ZONE, TPU_NAME, PRESET or ACCELERATOR_TYPE and RUNTIME_VERSION, SPOT,
                   VALID_UNTIL, SERVICE_ACCOUNT, NETWORK, SUBNETWORK, INTERNAL_IPS and LABEL
                   (default: cluster.env beside this script)
  --wait[=TIME]    return once the TPU VM is ACTIVE, or after TIME, such as 90s, 30m or 6h (default: 2d);
                   the request stays open then
  --poll_secs=N    seconds between two queries of its state (default: 30)

A preempted spot TPU VM leaves its queued resource SUSPENDED: run delete.sh, then create.sh and setup.sh
again.
Exit code: gcloud's; 1 if the TPU VM does not become ACTIVE within --wait; 2 if this script refuses.
Not yet run against Google Cloud.
USAGE
}

request() {
    local command=(gcloud compute tpus queued-resources create "$TPU_NAME" "--node-id=$TPU_NAME"
        "--accelerator-type=$ACCELERATOR_TYPE" "--runtime-version=$RUNTIME_VERSION"
        "--zone=$ZONE" "--project=$PROJECT" "--labels=launched_by=$LABEL")
    if [[ $SPOT == true ]]; then command+=(--spot); fi
    if [[ -n $VALID_UNTIL ]]; then command+=("--valid-until-duration=$VALID_UNTIL"); fi
    if [[ -n $SERVICE_ACCOUNT ]]; then command+=("--service-account=$SERVICE_ACCOUNT"); fi
    if [[ -n $NETWORK ]]; then command+=("--network=$NETWORK"); fi
    if [[ -n $SUBNETWORK ]]; then command+=("--subnetwork=$SUBNETWORK"); fi
    if [[ $INTERNAL_IPS == true ]]; then command+=(--internal-ips); fi
    run_or_print "${command[@]}"
}

print_next() {
    cat <<NEXT
Requested $TPU_NAME ($ACCELERATOR_TYPE). Show its state:
    $(DRY_RUN=true describe_queued)
Once it is ACTIVE, set it up:
    launch/setup.sh$SAME_CLUSTER
It costs money from then on, until you delete it:
    launch/delete.sh$SAME_CLUSTER
NEXT
}

main() {
    local wait='' poll=30
    while (($#)); do
        case $1 in
            --wait) wait=2d ;;
            --wait=*) wait=${1#*=} && check_duration --wait "$wait" ;;
            --poll_secs=*) poll=${1#*=} ;;
            *) take_option "$1" || refuse_option create.sh "$1" ;;
        esac
        shift
    done
    [[ $poll =~ ^[1-9][0-9]{0,3}$ ]] ||
        refuse "--poll_secs=$poll is not a number of seconds from 1 to 9999; try --poll_secs=30"
    read_cluster
    check_settings PROJECT ZONE TPU_NAME ACCELERATOR_TYPE RUNTIME_VERSION SPOT VALID_UNTIL \
        SERVICE_ACCOUNT NETWORK SUBNETWORK INTERNAL_IPS LABEL
    $DRY_RUN || check_gcloud

    request
    if $DRY_RUN; then
        [[ -z $wait ]] || describe_queued
        return
    fi
    print_next
    [[ -z $wait ]] || wait_until_active "$(in_seconds "$wait")" "$poll"
}

main "$@"
