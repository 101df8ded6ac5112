#!/usr/bin/env bash
# Delete the TPU VM that create.sh asked for, with everything on it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"

usage() {
    cat <<'USAGE'
usage: launch/delete.sh [--dry-run] [--cluster=FILE] [--yes]

Deletes the queued resource TPU_NAME and its TPU VM, running or not, with all that lies on the
workers' disks: stores, logs and checkpoints that are not on a shared or network disk are lost. Asks
for the TPU's name first.

  --dry-run        print the gcloud command instead of running it; pasted, it does not ask
  --cluster=FILE   PROJECT, ZONE and TPU_NAME (default: cluster.env beside this script)
  --yes            do not ask

A TPU VM that was made without a queued resource is not found by this command; delete it with
`gcloud compute tpus tpu-vm delete`.
Exit code: gcloud's; 2 where this script refuses.
Not yet run against Google Cloud.
USAGE
}

ask() {
    local answer=''
    [[ -t 0 ]] ||
        refuse "delete.sh asks for the TPU's name on a terminal, and there is none; add --yes to delete" \
            "$TPU_NAME without being asked"
    echo "This deletes $TPU_NAME in $ZONE of $PROJECT, with everything on its disks." >&2
    read -r -p "Its name, to go on: " answer || true
    [[ $answer == "$TPU_NAME" ]] ||
        refuse "'$answer' is not $TPU_NAME; nothing was deleted, and it goes on costing money"
}

main() {
    local sure=false list status
    while (($#)); do
        case $1 in
            --yes) sure=true ;;
            *) take_option "$1" || refuse_option delete.sh "$1" ;;
        esac
        shift
    done
    read_cluster
    check_settings PROJECT ZONE TPU_NAME
    if ! $DRY_RUN; then
        check_gcloud
        $sure || ask
    fi

    list="gcloud compute tpus tpu-vm list --zone=$ZONE --project=$PROJECT"
    run_or_print gcloud compute tpus queued-resources delete "$TPU_NAME" --force "--zone=$ZONE" \
        "--project=$PROJECT" --quiet || {
        status=$?
        echo "$TPU_NAME may still cost money; what there is: $list" >&2
        return $status
    }
    $DRY_RUN || echo "Deleted $TPU_NAME. What is left in $ZONE: $list"
}

main "$@"
