#!/usr/bin/env bash
# Delete the TPU VM that create.sh requested, with everything on it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=lib/queued_resource.sh
source "$LAUNCH/lib/queued_resource.sh"

usage() {
    cat <<'USAGE'
usage: launch/delete.sh [--dry-run] [--cluster=FILE] [--yes] [--force_foreign]

Deletes the queued resource TPU_NAME and its TPU VM, running or not, with everything on the workers'
disks: stores, logs and checkpoints that are not in a bucket or on a shared disk are lost. You confirm by
typing its name. A TPU VM without the label launched_by=LABEL, which create.sh sets, belongs to somebody
else and is left alone.

  --dry-run         print the gcloud commands instead of running them; pasted, they ask for no confirmation
  --cluster=FILE    PROJECT, ZONE, TPU_NAME and LABEL (default: cluster.env beside this script)
  --yes             ask for no confirmation
  --force_foreign   delete it even without that label; always asks, on a terminal

This command does not find a TPU VM that was created without a queued resource; delete it with
`gcloud compute tpus tpu-vm delete NAME --zone=ZONE --project=my-project`.
Exit code: gcloud's; 1 if there is no such queued resource; 2 if this script refuses.
Not yet run against Google Cloud.
USAGE
}

confirm() {
    local answer=''
    [[ -t 0 ]] ||
        refuse "delete.sh reads the TPU's name from a terminal, and there is none; $1"
    echo "This deletes $TPU_NAME in $ZONE of $PROJECT, with everything on its disks." >&2
    read -r -p "Type its name to confirm: " answer || true
    [[ $answer == "$TPU_NAME" ]] ||
        refuse "'$answer' is not $TPU_NAME; nothing was deleted, and it still costs money"
}

# Fails if there is nothing to delete; refuses if it is somebody else's.
check_ours() {
    local foreign=$1 list=$2
    ask_state || {
        local status=$?
        echo "$TPU_NAME was left alone and may still cost money; list what exists: $list" >&2
        return "$status"
    }
    if [[ $STATE == ABSENT ]]; then
        echo "$TPU_NAME was not found among the queued resources in $ZONE of $PROJECT; a TPU VM of that name" \
            "may still cost money; list what exists: $list" >&2
        return 1
    fi
    $foreign || [[ $MARK == "$LABEL" ]] ||
        refuse "$TPU_NAME has the label launched_by='$MARK', not '$LABEL': create.sh did not create it with this" \
            "cluster.env; nothing was deleted; set LABEL, or run with --force_foreign on a terminal"
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
            confirm "run --force_foreign on one"
        elif ! $sure; then
            confirm "add --yes to delete $TPU_NAME without confirmation"
        fi
        check_ours "$foreign" "$list"
    fi
    run_or_print gcloud compute tpus queued-resources delete "$TPU_NAME" --force "--zone=$ZONE" \
        "--project=$PROJECT" --quiet || {
        status=$?
        echo "$TPU_NAME may still cost money; list what exists: $list" >&2
        return "$status"
    }
    $DRY_RUN || echo "Deleted $TPU_NAME. List what is left in $ZONE: $list"
}

main "$@"
