#!/usr/bin/env bash
# Ask Google Cloud for the TPU VM that cluster.env describes.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=gcloud_errors.sh
source "$LAUNCH/gcloud_errors.sh"
# shellcheck source-path=SCRIPTDIR source=queued_resource.sh
source "$LAUNCH/queued_resource.sh"

usage() {
    cat <<'USAGE'
usage: launch/create.sh [--dry-run] [--cluster=FILE] [--wait[=TIME]] [--poll_secs=N]

Asks for a TPU VM as a queued resource: Google Cloud makes it when there is room. Both get the name
TPU_NAME, and the label launched_by=LABEL, without which delete.sh deletes nothing. The TPU VM costs
money from the moment it exists until launch/delete.sh has deleted it, whether it trains or not.

  --dry-run        print the gcloud commands instead of running them
  --cluster=FILE   PROJECT, ZONE, TPU_NAME, PRESET or ACCELERATOR_TYPE and RUNTIME_VERSION, SPOT,
                   VALID_UNTIL, SERVICE_ACCOUNT, NETWORK, SUBNETWORK, INTERNAL_IPS and LABEL
                   (default: cluster.env beside this script)
  --wait[=TIME]    come back once the TPU VM is there, or after TIME, such as 90s, 30m, 6h or 2d, which
                   is the default; what was asked for stays asked for then
  --poll_secs=N    ask so often for its state (default: 30)

A spot TPU VM that Google Cloud has taken back leaves its queued resource SUSPENDED: run delete.sh,
then create.sh and setup.sh again.
Exit code: gcloud's; 1 where --wait does not see it ACTIVE; 2 where this script refuses.
Not yet run against Google Cloud.
USAGE
}

ask_for_it() {
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

say_next() {
    cat <<NEXT
Asked for $TPU_NAME ($ACCELERATOR_TYPE). Its state:
    $(DRY_RUN=true describe_queued)
Once that says ACTIVE:
    launch/setup.sh$SAME_CLUSTER
$TPU_NAME costs money from then on, until:
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

    ask_for_it
    if $DRY_RUN; then
        [[ -z $wait ]] || describe_queued
        return
    fi
    say_next
    [[ -z $wait ]] || wait_until_active "$(in_seconds "$wait")" "$poll"
}

main "$@"
