#!/usr/bin/env bash
# Start training on every worker of an existing TPU VM, or stop it; it runs without this machine.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=lib/config_check.sh
source "$LAUNCH/lib/config_check.sh"

usage() {
    cat <<'USAGE'
usage: launch/train.sh [--dry-run] [--cluster=FILE] [--follow] [--doctor] [--skip_config_check]
                       --config=FILE --workdir=DIR [TRAIN_FLAG ...]
       launch/train.sh [--dry-run] [--cluster=FILE] --stop

Starts `python -m bert_jax.train --multihost` with the flags from --config on, on all workers of the
TPU VM of cluster.env, and returns: training continues when this machine is switched off. Each worker
appends its output to REMOTE_DIR/logs/train.log, copied to BUCKET/logs/TPU_NAME every minute;
launch/logs.sh shows it. Nothing is started if a worker trains already, or if the config, which is
resolved here first, has a mistake.

  --dry-run        print the gcloud commands instead of running them
  --cluster=FILE   PROJECT, ZONE, TPU_NAME, BUCKET, INTERNAL_IPS, COORDINATOR_PORT, REMOTE_DIR and
                   REMOTE_PYTHON (default: cluster.env beside this script)
  --follow         then show all workers' output until Ctrl-C, which does not disturb training
  --doctor         first check all workers with `python -m bert_jax.doctor`, some eight minutes; train only
                   if nothing is wrong. Its numbers are in REMOTE_DIR/logs/doctor.json of the first worker
  --skip_config_check
                   do not resolve the config here: for workers with another commit than this clone
  --stop           stop it on all workers: SIGTERM, upon which it saves, and SIGKILL 60 s later
  --workdir=DIR    a folder in a bucket, gs://BUCKET/DIR, or one that all workers share, such as an NFS
                   mount: all of them write each checkpoint together

The TPU VM must exist, with bert_jax in REMOTE_DIR on every worker: run launch/setup.sh first. The same
command resumes from the newest checkpoint. It is recorded in gcloud's log on this machine and in the
workers' process lists: put no secret into it. This machine's environment is not passed on.
BERT_JAX_PYTHON in the environment names the Python that resolves the config (default: .venv/bin/python
of the clone, else python3 or python).
Exit code: gcloud's, which is that of a failed worker, 2 if one trains already; 2 if this script refuses.
Not yet run on a real TPU VM.
USAGE
}

has_flag() {
    local name=$1 argument
    shift
    for argument in "$@"; do
        [[ $argument == "$name="?* ]] && return
    done
    return 1
}

# The doctor knows these flags of training and no others. It waits for all workers, as training does.
examine() {
    local flag known=()
    for flag in "$@"; do
        [[ $flag != --config[=.[]* && $flag != --workdir=* && $flag != --multihost ]] || known+=("$flag")
    done
    on_workers all "$1$(quoted timeout "$DOCTOR_SECS" "$REMOTE_PYTHON" -m bert_jax.doctor "${known[@]}" \
        "--json_out=${LOG%/*}/doctor.json")" || {
        local status=$?
        echo "training was not started on $TPU_NAME: the doctor found something wrong, or took over" \
            "$DOCTOR_SECS s; its output is above" >&2
        return "$status"
    }
}

start() {
    local here port='' folder=''
    here="cd $(quoted "$REMOTE_DIR")"
    [[ -z $COORDINATOR_PORT ]] || port="JAX_COORDINATOR_PORT=$COORDINATOR_PORT "
    [[ -z $BUCKET ]] || folder=${BUCKET%/}/logs/$TPU_NAME
    # First on all of them: a run that starts on some workers waits forever for the others.
    on_workers all "$here && bash launch/worker/on_worker_clear.sh $LOG"
    if $DOCTOR; then examine "$here && $port" "$@" || return; fi
    on_workers all "$here && ${port}bash launch/worker/on_worker_train.sh $(quoted "$REMOTE_PYTHON" "$LOG" "$folder" "$@")" || {
        local status=$?
        echo "$TPU_NAME may train on some workers only; stop it: launch/train.sh$SAME_CLUSTER --stop" >&2
        return "$status"
    }
}

print_next() {
    cat <<NEXT
$TPU_NAME trains. Show its output:
    launch/logs.sh$SAME_CLUSTER --follow
Stop it, upon which it saves:
    launch/train.sh$SAME_CLUSTER --stop
NEXT
}

follow_logs() {
    local command=(bash "$LAUNCH/logs.sh" "--cluster=$CLUSTER" --follow)
    if $DRY_RUN; then command+=(--dry-run); fi
    "${command[@]}"
}

DOCTOR=false
readonly DOCTOR_SECS=900

main() {
    local flags=(--multihost) follow=false stop=false is_checked=false
    while (($#)); do
        case $1 in
            --follow) follow=true ;;
            --doctor) DOCTOR=true ;;
            --skip_config_check) is_checked=true ;;
            --stop) stop=true ;;
            *) take_option "$1" || flags+=("$1") ;;
        esac
        shift
    done
    if $stop; then
        ((${#flags[@]} == 1)) ||
            refuse "--stop takes no flags of training, but there is '${flags[1]}'; remove it"
    else
        has_flag --config "${flags[@]}" ||
            refuse "--config=FILE is missing, such as --config=configs/base.py; see launch/train.sh --help"
        has_flag --workdir "${flags[@]}" ||
            refuse "--workdir=DIR is missing, a folder that all workers share; see launch/train.sh --help"
    fi
    read_cluster
    check_settings PROJECT ZONE TPU_NAME BUCKET INTERNAL_IPS COORDINATOR_PORT REMOTE_DIR REMOTE_PYTHON
    if ! $stop && ! $is_checked; then check_config '' "${flags[@]:1}"; fi
    $DRY_RUN || check_gcloud

    if $stop; then
        on_workers all "cd $(quoted "$REMOTE_DIR") && bash launch/worker/on_worker_train.sh --stop $LOG"
        return
    fi
    start "${flags[@]}"
    $DRY_RUN || print_next
    if $follow; then follow_logs; fi
}

main "$@"
