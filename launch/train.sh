#!/usr/bin/env bash
# Start training on every worker of an existing TPU VM and show its output until it ends.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: launch/train.sh [--dry-run] [--cluster=FILE] --config=FILE --workdir=DIR [TRAIN_FLAG ...]

Runs `python -m bert_jax.train --multihost` with the flags from --config on, on all workers of the
TPU VM that FILE names (default: cluster.env beside this script).

  --dry-run        print the gcloud command instead of running it
  --cluster=FILE   PROJECT, ZONE, TPU_NAME, REMOTE_DIR and REMOTE_PYTHON
  --workdir=DIR    a folder that all workers share, such as an NFS mount: a checkpoint is written
                   by all of them together

The TPU VM must exist, with bert_jax set up in REMOTE_DIR on every worker. The command line ends up
in gcloud's log and in the workers' process lists: put no secret into it.
Exit code: gcloud's, which is that of a worker that failed; 2 where this script refuses.
Not yet run on a real TPU VM.
USAGE
}

refuse() {
    echo "error: $*" >&2
    exit 2
}

PROJECT='' ZONE='' TPU_NAME='' REMOTE_DIR='' REMOTE_PYTHON=''

read_cluster() {
    local file=$1 line name value
    [[ -f $file ]] || refuse "$file: there is no such file; copy launch/cluster.env and fill it in"
    while IFS= read -r line || [[ -n $line ]]; do
        [[ $line =~ ^[[:space:]]*(#.*)?$ ]] && continue
        name=${line%%=*} value=${line#*=}
        case $name in
            PROJECT) PROJECT=$value ;;
            ZONE) ZONE=$value ;;
            TPU_NAME) TPU_NAME=$value ;;
            REMOTE_DIR) REMOTE_DIR=$value ;;
            REMOTE_PYTHON) REMOTE_PYTHON=$value ;;
            *) refuse "$file: '$line' is not NAME=VALUE with NAME one of PROJECT, ZONE, TPU_NAME," \
                "REMOTE_DIR, REMOTE_PYTHON" ;;
        esac
    done <"$file"
}

# check FILE NAME VALUE PATTERN EXAMPLE
check() {
    [[ -n $3 ]] || refuse "$1: $2 is empty; give it a value, such as $2=$5"
    [[ $3 =~ ^$4$ ]] || refuse "$1: $2 is '$3', which is not of the form of $5"
}

check_cluster() {
    local path='[A-Za-z0-9._/][A-Za-z0-9._/-]*'
    check "$1" PROJECT "$PROJECT" '([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]' my-project
    check "$1" ZONE "$ZONE" '[a-z]+-[a-z]+[0-9]+-[a-z0-9]+' us-central2-b
    check "$1" TPU_NAME "$TPU_NAME" '[a-z]([-a-z0-9]{0,61}[a-z0-9])?' my-tpu
    check "$1" REMOTE_DIR "$REMOTE_DIR" "$path" bert_jax
    check "$1" REMOTE_PYTHON "$REMOTE_PYTHON" "$path" .venv/bin/python
}

# One shell word per argument, quoted for the workers' bash.
quoted() {
    local words
    printf -v words '%q ' "$@"
    echo "${words% }"
}

has_flag() {
    local name=$1 argument
    shift
    for argument in "$@"; do
        [[ $argument == "$name="?* ]] && return
    done
    return 1
}

main() {
    local dry_run=false cluster
    cluster=$(dirname "${BASH_SOURCE[0]}")/cluster.env
    while (($#)); do
        case $1 in
            -h | --help) usage && exit ;;
            --dry-run) dry_run=true ;;
            --cluster=*) cluster=${1#*=} ;;
            *) break ;;
        esac
        shift
    done
    has_flag --config "$@" ||
        refuse "--config=FILE is missing, such as --config=configs/base.py; see launch/train.sh --help"
    has_flag --workdir "$@" ||
        refuse "--workdir=DIR is missing, a folder that all workers share; see launch/train.sh --help"
    read_cluster "$cluster"
    check_cluster "$cluster"

    local remote command
    remote="cd $(quoted "$REMOTE_DIR") && $(quoted "$REMOTE_PYTHON" -m bert_jax.train --multihost "$@")"
    command=(gcloud compute tpus tpu-vm ssh "$TPU_NAME" "--zone=$ZONE" "--project=$PROJECT"
        --worker=all "--command=$remote")
    if $dry_run; then
        quoted "${command[@]}"
        return
    fi
    command -v gcloud >/dev/null ||
        refuse "gcloud is not on PATH; install it (https://cloud.google.com/sdk/docs/install) and" \
            "run 'gcloud auth login', or see the command with --dry-run"
    "${command[@]}"
}

main "$@"
