#!/usr/bin/env bash
# Show, or follow, what training has written on the workers of a TPU VM.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"

usage() {
    cat <<'USAGE'
usage: launch/logs.sh [--dry-run] [--cluster=FILE] [--worker=N|all] [--lines=N] [--follow]

Shows the end of REMOTE_DIR/logs/train.log, which launch/train.sh writes on each worker. Each line
opens with the name of its worker; the lines of several workers come as they arrive.

  --dry-run        print the gcloud command instead of running it
  --cluster=FILE   PROJECT, ZONE, TPU_NAME and REMOTE_DIR (default: cluster.env beside this script)
  --worker=N|all   one worker, counted from 0, or all of them (default: all)
  --lines=N        so many of the last lines (default: 100)
  --follow         go on showing new lines until Ctrl-C; training is not disturbed by either

Exit code: gcloud's, which is that of a worker that failed, such as one without a log; 2 where this
script refuses.
Not yet run on a real TPU VM.
USAGE
}

main() {
    local worker=all lines=100 follow='' remote
    while (($#)); do
        case $1 in
            --worker=*) worker=${1#*=} ;;
            --lines=*) lines=${1#*=} ;;
            --follow) follow=' -F' ;;
            *) take_option "$1" || refuse_option logs.sh "$1" ;;
        esac
        shift
    done
    [[ $worker =~ ^(all|0|[1-9][0-9]{0,4})$ ]] ||
        refuse "--worker=$worker is neither a worker's number, counted from 0, nor all; try --worker=0"
    [[ $lines =~ ^[1-9][0-9]{0,8}$ ]] ||
        refuse "--lines=$lines is not a number of lines from 1 on; try --lines=100"
    read_cluster
    check_settings PROJECT ZONE TPU_NAME INTERNAL_IPS REMOTE_DIR
    $DRY_RUN || check_gcloud

    # A tail that --follow leaves behind ends when the log grows and nobody reads.
    remote="if [ -f $REMOTE_DIR/$LOG ]; then tail -n $lines$follow $REMOTE_DIR/$LOG"
    remote+=" | sed -u \"s/^/\$HOSTNAME: /\"; else echo \"\$HOSTNAME: $REMOTE_DIR/$LOG does not exist;"
    remote+=" launch/train.sh has not run here\" >&2; exit 1; fi"
    on_workers "$worker" "$remote"
}

main "$@"
