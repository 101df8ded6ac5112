#!/usr/bin/env bash
# Runs on a worker, from REMOTE_DIR, before training starts: ends what an earlier run left behind.
# on_worker_clear.sh LOG
set -euo pipefail

readonly LOG=$1 LIBTPU_LOCK=${LIBTPU_LOCK-/tmp/libtpu_lockfile}

say() { echo "$HOSTNAME: $*"; }

refuse() {
    say "error: $*" >&2
    exit 2
}

# What train.sh starts holds a lock, children included, so that what is left of it is known for ours.
end_leftovers() {
    local status
    status=$(bash launch/worker/on_worker_train.sh --status "$LOG")
    [[ $status != running* ]] ||
        refuse "training runs here already ($status); stop it with launch/train.sh --stop"
    bash launch/worker/on_worker_train.sh --stop "$LOG" >/dev/null
}

# A training that somebody started by hand has the TPU: only they may end it.
refuse_beside_others() {
    local folder words
    for folder in /proc/[0-9]*; do
        [[ $(readlink "$folder/cwd" 2>/dev/null) == "$PWD" ]] || continue
        words=$(tr '\0' ' ' <"$folder/cmdline" 2>/dev/null) || continue
        [[ $words != *' -m bert_jax.train '* ]] ||
            refuse "process ${folder#/proc/} trains in $PWD, and launch/train.sh did not start it: '$words';" \
                "stop it first: kill ${folder#/proc/}"
    done
}

# libtpu leaves the file behind when it is killed, and with another owner it keeps the next one out.
remove_stale_lock() {
    [[ -e $LIBTPU_LOCK ]] || return 0
    [[ -O $LIBTPU_LOCK ]] ||
        { say "$LIBTPU_LOCK belongs to $(stat -c %U "$LIBTPU_LOCK"); left unchanged" && return; }
    [[ -z $(find /proc/[0-9]*/fd -lname "$LIBTPU_LOCK" 2>/dev/null | head -n 1) ]] ||
        { say "$LIBTPU_LOCK is in use; left unchanged" && return; }
    rm -f "$LIBTPU_LOCK"
    say "removed $LIBTPU_LOCK, which no process had open"
}

end_leftovers
refuse_beside_others
remove_stale_lock
