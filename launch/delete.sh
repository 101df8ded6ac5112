#!/usr/bin/env bash
# Delete the TPU VM that create.sh asked for, with everything on it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=gcloud_errors.sh
source "$LAUNCH/gcloud_errors.sh"
# shellcheck source-path=SCRIPTDIR source=queued_resource.sh
source "$LAUNCH/queued_resource.sh"

usage() {
    cat <<'USAGE'
usage: launch/delete.sh [--dry-run] [--cluster=FILE] [--yes] [--force_foreign]

Deletes the queued resource TPU_NAME and its TPU VM, running or not, with all that lies on the
workers' disks: stores, logs and checkpoints that are not in a bucket or on a shared disk are lost.
Asks for the TPU's name first. What has not the label launched_by=LABEL, which create.sh gives, is
somebody else's and stays.

  --dry-run         print the gcloud commands instead of running them; pasted, they do not ask
  --cluster=FILE    PROJECT, ZONE, TPU_NAME and LABEL (default: cluster.env beside this script)
  --yes             do not ask
  --force_foreign   delete it without that label as well; always asks, on a terminal

A TPU VM that was made without a queued resource is not found by this command; delete it with
`gcloud compute tpus tpu-vm delete NAME --zone=ZONE --project=my-project`.
Exit code: gcloud's; 1 where there is no such queued resource; 2 where this script refuses.
Not yet run against Google Cloud.
USAGE
}

ask() {
    local answer=''
    [[ -t 0 ]] ||
        refuse "delete.sh asks for the TPU's name on a terminal, and there is none; $1"
    echo "This deletes $TPU_NAME in $ZONE of $PROJECT, with everything on its disks." >&2
    read -r -p "Its name, to go on: " answer || true
    [[ $answer == "$TPU_NAME" ]] ||
        refuse "'$answer' is not $TPU_NAME; nothing was deleted, and it goes on costing money"
}

# Fails where there is nothing to delete; refuses where it is somebody else's.
check_ours() {
    local foreign=$1 list=$2
    ask_state || {
        local status=$?
        echo "$TPU_NAME was left alone and may still cost money; what there is: $list" >&2
        return "$status"
    }
    if [[ $STATE == ABSENT ]]; then
        echo "$TPU_NAME was not found among the queued resources in $ZONE of $PROJECT; a TPU VM of that name" \
            "may still cost money; what there is: $list" >&2
        return 1
    fi
    $foreign || [[ $MARK == "$LABEL" ]] ||
        refuse "$TPU_NAME has the label launched_by='$MARK', not '$LABEL', so that create.sh did not make it" \
            "with this cluster.env; nothing was deleted; set LABEL, or add --force_foreign by hand"
}

main() {
    local sure=false foreign=false list status
    while (($#)); do
        case $1 in
            --yes) sure=true ;;
            --force_foreign) foreign=true ;;
            *) take_option "$1" || refuse_option delete.sh "$1" ;;
        esac
        shift
    done
    read_cluster
    check_settings PROJECT ZONE TPU_NAME LABEL
    list="gcloud compute tpus tpu-vm list --zone=$ZONE --project=$PROJECT"
    if $DRY_RUN; then
        describe_queued
    else
        check_gcloud
        if $foreign; then
            ask "--force_foreign is only for hands"
        elif ! $sure; then
            ask "add --yes to delete $TPU_NAME without being asked"
        fi
        check_ours "$foreign" "$list"
    fi
    run_or_print gcloud compute tpus queued-resources delete "$TPU_NAME" --force "--zone=$ZONE" \
        "--project=$PROJECT" --quiet || {
        status=$?
        echo "$TPU_NAME may still cost money; what there is: $list" >&2
        return "$status"
    }
    $DRY_RUN || echo "Deleted $TPU_NAME. What is left in $ZONE: $list"
}

main "$@"
