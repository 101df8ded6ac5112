#!/usr/bin/env bash
# Open a shell on a worker of the TPU VM, or run a command on one or all of them.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cluster.sh"

usage() {
    cat <<'USAGE'
usage: launch/ssh.sh [--dry-run] [--cluster=FILE] [--worker=N|all] ['COMMAND']

Opens a shell on a worker, or runs COMMAND in its home folder. COMMAND is one shell word, such as
'df -h | tail -n 1'.

  --dry-run        print the gcloud command instead of running it
  --cluster=FILE   PROJECT, ZONE, TPU_NAME and INTERNAL_IPS (default: cluster.env beside this script)
  --worker=N|all   one worker, counted from 0, or with a command all of them (default: 0)

A command is recorded in gcloud's log on this machine and in the worker's process list: put no secret into
it; type it into the shell instead. Output of the worker reaches your terminal unescaped.
Exit code: gcloud's, which is that of a failed worker; 2 if this script refuses.
Not yet run on a real TPU VM.
USAGE
}

main() {
    local worker=0 remote=''
    while (($#)); do
        case $1 in
            --worker=*) worker=${1#*=} ;;
            -*) take_option "$1" || refuse_option ssh.sh "$1" ;;
            *)
                [[ -z $remote ]] ||
                    refuse "there are two commands, '$remote' and '$1'; quote them as one: launch/ssh.sh" \
                        "'$remote $1'"
                remote=$1
                ;;
        esac
        shift
    done
    check_worker "$worker"
    [[ $worker != all || -n $remote ]] ||
        refuse "a shell opens on one worker; try --worker=0, or add a command to --worker=all"
    read_cluster
    check_settings PROJECT ZONE TPU_NAME INTERNAL_IPS
    $DRY_RUN || check_gcloud
    at_terminal "$worker" "$remote"
}

main "$@"
