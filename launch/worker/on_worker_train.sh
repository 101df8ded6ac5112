#!/usr/bin/env bash
# Runs on a worker, from REMOTE_DIR: starts training so that it outlives the connection, reports on it, stops it.
# on_worker_train.sh PYTHON LOG BUCKET_FOLDER [TRAIN_FLAG ...]    start; BUCKET_FOLDER may be empty
# on_worker_train.sh --status LOG [WORKDIR]    one line; STEP is the newest checkpoint in WORKDIR where
#     that is a folder, else -; busy: what runs has another workdir than the one given
#     running PID SECS_SINCE_LAST_LOG_LINE STEP | ended EXIT_CODE STEP | never started | busy PID
# on_worker_train.sh --stop LOG      SIGTERM, STOP_GRACE_SECS later SIGKILL, to all that was started; code 1 where
#     something of it is there KILL_SECS after that
# on_worker_train.sh --stacks LOG    where each thread of the training stands, at the end of the log
# on_worker_train.sh --clear LOG     before a start: ends and removes what an earlier run left behind
set -euo pipefail
shopt -s extglob

LIBTPU_LOCK=${LIBTPU_LOCK-/tmp/libtpu_lockfile}
UPLOAD_SECS=${UPLOAD_SECS-60} STOP_GRACE_SECS=${STOP_GRACE_SECS-60} STACKS_SECS=${STACKS_SECS-2}
# Time for killed processes to exit.
KILL_SECS=${KILL_SECS-30}

# Every live process of a training holds LOCK: a pid alone may belong to another program by now.
readonly LOG=$2 BASE=${2%.log}
readonly LOCK=$BASE.lock PID=$BASE.pid EXIT_CODE=$BASE.exit_code WORKDIR=$BASE.workdir

refuse() {
    echo "$HOSTNAME: error: $*" >&2
    exit 2
}

write_whole() {
    printf '%s\n' "$2" >"$1.new"
    mv "$1.new" "$1"
}

# Succeed once no process of a training is left, within so many seconds.
wait_for_end() {
    [[ ! -e $LOCK ]] || flock --shared --wait "$1" "$LOCK" true
}

is_running() {
    ! wait_for_end 0
}

refuse_second() {
    refuse "training runs here already ($1); wait for it to end, or stop it with --stop of the script that started it:" \
        "launch/train.sh or launch/hosts.sh"
}

start() {
    local python=$1 bucket=$3 flag workdir=''
    shift 3
    mkdir -p "$(dirname "$LOG")"
    exec 9>>"$LOCK"
    # A --status may hold the lock for a moment.
    flock --wait 1 9 || refuse_second "process $(group)"
    rm -f "$EXIT_CODE" "$PID"
    for flag in "$@"; do
        if [[ $flag == --workdir=* ]]; then workdir=${flag#*=}; fi
    done
    write_whole "$WORKDIR" "$workdir"
    date -u '+%FT%TZ train.sh' >>"$LOG"
    # The child inherits the lock and passes it to Python.
    # shellcheck disable=SC2094  # LOG is an argument there, not read
    setsid bash "${BASH_SOURCE[0]}" --run "$LOG" "$python" "$bucket" "$@" </dev/null >>"$LOG" 2>&1 &
    until [[ -e $PID ]]; do
        kill -0 $! 2>/dev/null || [[ -e $PID ]] || refuse "training did not start; see $LOG"
        sleep 0.02
    done
    echo "$HOSTNAME: training runs as process $(group); output in $LOG"
}

# Copies of the log are named by the worker and the time of its first line: a recreated TPU VM
# has workers of other names, and overwrites none.
upload() {
    local first
    read -r first _ <"$LOG"
    timeout 300 gcloud storage cp --quiet "$LOG" "$1/$HOSTNAME-${first//[-:]/}.log" 2>&1
}

# A session and process group of its own, which --stop ends as a whole.
run() {
    local python=$2 bucket=$3 said uploading='' code=0
    shift 3
    trap : TERM INT HUP USR1 USR2
    if [[ -n $bucket ]]; then
        while sleep "$UPLOAD_SECS"; do upload "$bucket" >/dev/null || true; done 9>&- &
        uploading=$!
    fi
    (write_whole "$PID" "$$ $BASHPID" && exec "$python" -u -m bert_jax.train "$@") || code=$?
    [[ -z $uploading ]] || kill "$uploading" 2>/dev/null || true
    write_whole "$EXIT_CODE" "$code"
    date -u "+%FT%TZ ended with exit code $code"
    exec 9>&-
    [[ -z $bucket ]] || said=$(upload "$bucket") || echo "the log was not copied to $bucket: $said"
}

# Only all-digit names count: an unfinished checkpoint ends in .orbax-checkpoint-tmp.
newest_step() {
    local newest
    newest=$(find "$1/checkpoints/" -maxdepth 1 -printf '%f\n' 2>/dev/null |
        sed -nE 's/^0*([0-9]{1,15})$/\1/p' | sort -n | tail -n 1 || true)
    echo "${newest:--}"
}

# The process group of the training; nothing if the file is empty, as after a full disk. kill of group 1 or less
# would reach all processes of this user.
group() {
    local words=''
    read -r words _ 2>/dev/null <"$PID" || true
    if [[ $words =~ ^[1-9][0-9]{0,8}$ && $words != 1 ]]; then echo "$words"; fi
}

status() {
    local pid workdir written code=''
    workdir=$(cat "$WORKDIR" 2>/dev/null || true)
    if [[ ! -e $EXIT_CODE ]] && is_running; then
        pid=$(group)
        pid=${pid:--}
        if [[ -n ${2-} && ${2%%+(/)} != "${workdir%%+(/)}" ]]; then
            echo "busy $pid"
            return
        fi
        # A log that was moved or removed is still written.
        written=$(stat -Lc %Y "/proc/$pid/fd/1" "$LOG" "$LOCK" 2>/dev/null | sort -n | tail -n 1 || true)
        echo "running $pid $(($(date +%s) - written)) $(newest_step "${2-$workdir}")"
    elif [[ -e $EXIT_CODE || -e $PID ]]; then
        # Without an exit code training was killed, or the worker rebooted.
        read -r code 2>/dev/null <"$EXIT_CODE" || true
        [[ $code =~ ^[0-9]{1,3}$ ]] || code=137
        echo "ended $code $(newest_step "${2-$workdir}")"
    else
        echo "never started"
    fi
}

stop() {
    local group
    is_running || { echo "$HOSTNAME: no training runs here" && return; }
    group=$(group)
    [[ -z $group ]] || kill -TERM -- "-$group" 2>/dev/null || true
    if ! wait_for_end "$STOP_GRACE_SECS"; then
        [[ -z $group ]] || kill -KILL -- "-$group" 2>/dev/null || true
        echo "$HOSTNAME: killed, as $STOP_GRACE_SECS s after SIGTERM it was still there"
    fi
    if ! wait_for_end "$KILL_SECS"; then
        echo "$HOSTNAME: error: $KILL_SECS s after SIGKILL a process of the training still holds $LOCK" >&2
        return 1
    fi
    [[ -e $EXIT_CODE ]] || write_whole "$EXIT_CODE" 137
    echo "$HOSTNAME: training has stopped, exit code $(cat "$EXIT_CODE")"
}

# SIGQUIT ends a process without a handler for it; bit 0x4 of SigCgt says that there is one.
stacks() {
    local child
    if is_running; then
        read -r _ child <"$PID" || true
        [[ $child =~ ^[1-9][0-9]{0,8}$ ]] || child=0
        if grep -q '^SigCgt:.*[4-7c-f]$' "/proc/$child/status" 2>/dev/null; then
            kill -QUIT "$child"
            sleep "$STACKS_SECS"
        else
            echo "$HOSTNAME: the training writes no stacks now: it is starting or ending"
        fi
    fi
    [[ ! -e $LOG ]] || tail -n 200 "$LOG"
}

# Every process that train.sh starts holds the lock, so leftovers are known to be ours and are ended. A training
# started in another way has the TPU too: only its owner may end it.
clear() {
    local now folder words
    now=$(status "$LOG")
    [[ $now != running* ]] || refuse_second "$now"
    stop >/dev/null
    cd -P . # as /proc names folders
    for folder in /proc/[0-9]*; do
        [[ $(readlink "$folder/cwd" 2>/dev/null) == "$PWD" ]] || continue
        words=$(tr '\0' ' ' <"$folder/cmdline" 2>/dev/null) || continue
        [[ $words != *[\ /]bert[-_]jax[.\ ]train\ * ]] ||
            refuse "process ${folder#/proc/} trains in $PWD, and launch/train.sh did not start it: '$words';" \
                "stop it first: kill ${folder#/proc/}"
    done
    remove_stale_lock
}

# A killed libtpu leaves its lock file behind; one with another owner keeps the next libtpu out.
remove_stale_lock() {
    [[ -e $LIBTPU_LOCK ]] || return 0
    [[ -O $LIBTPU_LOCK ]] ||
        { echo "$HOSTNAME: $LIBTPU_LOCK belongs to $(stat -c %U "$LIBTPU_LOCK"); left unchanged" && return; }
    [[ -z $(find /proc/[0-9]*/fd -lname "$LIBTPU_LOCK" 2>/dev/null | head -n 1) ]] ||
        { echo "$HOSTNAME: $LIBTPU_LOCK is in use; left unchanged" && return; }
    rm -f "$LIBTPU_LOCK"
    echo "$HOSTNAME: removed $LIBTPU_LOCK, which no process had open"
}

case $1 in
    --run | --status | --stop | --stacks | --clear) "${1#--}" "${@:2}" ;;
    *) start "$@" ;;
esac
