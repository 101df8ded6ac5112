#!/usr/bin/env bash
# Show or follow the log of training on the workers of a TPU VM, or its copies in the bucket.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cluster.sh"

usage() {
    cat <<'USAGE'
usage: launch/logs.sh [--dry-run] [--cluster=FILE] [--worker=N|all] [--lines=N] [--follow | --bucket]

Shows the end of REMOTE_DIR/logs/train.log, which training writes on each worker. Each line starts with
the name of its worker; lines of several workers are shown as they arrive.

  --dry-run        print the gcloud command instead of running it
  --cluster=FILE   PROJECT, ZONE, TPU_NAME, BUCKET, INTERNAL_IPS and REMOTE_DIR (default: cluster.env
                   beside this script)
  --worker=N|all   one worker, counted from 0, or all of them (default: all)
  --lines=N        number of lines, from the end (default: 100)
  --follow         keep showing new lines until Ctrl-C, which does not disturb training
  --bucket         list the copies in BUCKET/logs/TPU_NAME instead, also those of deleted TPU VMs, and
                   show the end of the newest one, of worker N with --worker=N

Escape sequences and other control characters are shown as \x1b and the like.
Exit code: gcloud's, which is that of a failed worker, such as one without a log; 1 if the bucket has no
copy; 2 if this script refuses.
Not yet run on a real TPU VM.
USAGE
}

from_workers() {
    local worker=$1 lines=$2 follow=$3 remote
    # A tail that --follow leaves behind ends when the log grows and nobody reads.
    remote="if [ -f $REMOTE_DIR/$LOG ]; then tail -n $lines$follow $REMOTE_DIR/$LOG"
    remote+=" | sed -u \"s/^/\$HOSTNAME: /\"; else echo \"\$HOSTNAME: $REMOTE_DIR/$LOG does not exist;"
    remote+=" launch/train.sh has not run here\" >&2; exit 1; fi"
    on_workers "$worker" "$remote"
}

# A copy is named WORKER-TIME.log, and a worker's name ends with its number. Each line of the list is
# size, time of the last copy and address, so that sorting by time puts the newest last.
from_bucket() {
    local worker=$1 lines=$2 folder=${BUCKET%/}/logs/$TPU_NAME list newest
    if $DRY_RUN; then
        quoted gcloud storage ls --long "$folder/*.log" "--project=$PROJECT"
        quoted gcloud storage cat "$folder/NEWEST.log" "--project=$PROJECT"
        return
    fi
    list=$(gcloud storage ls --long "$folder/*.log" "--project=$PROJECT") ||
        { echo "error: $folder could not be listed, or has no log" >&2 && return 1; }
    # Skip names that training would not have given.
    list=$(LC_ALL=C grep -E "^ *[0-9]+ +[0-9TZ:.-]+ +$folder/[A-Za-z0-9._-]+\.log$" <<<"$list" |
        LC_ALL=C sort -k 2 || true)
    printf '%s\n\n' "$list"
    if [[ $worker != all ]]; then list=$(grep -E -- "-$worker-[0-9TZ]+\.log$" <<<"$list" || true); fi
    [[ -n $list ]] || { echo "error: $folder has no log of worker $worker" >&2 && return 1; }
    newest=${list##* }
    echo "$newest"
    gcloud storage cat "$newest" "--project=$PROJECT" | tail -n "$lines" | escape_lines
}

main() {
    local worker=all lines=100 follow='' bucket=false
    while (($#)); do
        case $1 in
            --worker=*) worker=${1#*=} ;;
            --lines=*) lines=${1#*=} ;;
            --follow) follow=' -F' ;;
            --bucket) bucket=true ;;
            *) take_option "$1" || refuse_option logs.sh "$1" ;;
        esac
        shift
    done
    check_worker "$worker"
    [[ $lines =~ ^[1-9][0-9]{0,8}$ ]] ||
        refuse "--lines=$lines is not a whole number from 1; try --lines=100"
    [[ -z $follow ]] || ! $bucket ||
        refuse "--follow does not work with --bucket, whose copies are a minute old; remove --bucket"
    read_cluster
    check_settings PROJECT ZONE TPU_NAME BUCKET INTERNAL_IPS REMOTE_DIR
    ! $bucket || [[ -n $BUCKET ]] ||
        refuse "$CLUSTER: BUCKET is empty, so no log was copied; remove --bucket"
    $DRY_RUN || check_gcloud

    if $bucket; then from_bucket "$worker" "$lines"; else from_workers "$worker" "$lines" "$follow"; fi
}

main "$@"
