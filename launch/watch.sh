#!/usr/bin/env bash
# Keep a training run going until it ends: recreate a lost TPU VM, restart failed training.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib/cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=lib/config_check.sh
source "$LAUNCH/lib/config_check.sh"
# shellcheck source-path=SCRIPTDIR source=lib/queued_resource.sh
source "$LAUNCH/lib/queued_resource.sh"
# shellcheck source-path=SCRIPTDIR source=lib/spending.sh
source "$LAUNCH/lib/spending.sh"
# shellcheck source-path=SCRIPTDIR source=lib/watch_events.sh
source "$LAUNCH/lib/watch_events.sh"
# shellcheck source-path=SCRIPTDIR source=lib/watch_workers.sh
source "$LAUNCH/lib/watch_workers.sh"

usage() {
    cat <<'USAGE'
usage: launch/watch.sh [OPTION ...] --config=FILE --workdir=DIR [TRAIN_FLAG ...]

Resolves the config here, as launch/train.sh does, and polls the TPU VM until training has finished. A
missing TPU VM is requested (create.sh), set up (setup.sh) and trained on (train.sh). A preempted or lost
one is deleted, with its disks, and recreated; a run that failed, or is silent for too long, is stopped on
all workers and restarted. Each start resumes from the newest checkpoint. It runs here, on a laptop or a
small VM: if it or this machine stops, training continues, and the same command resumes the watch. A
running watch.sh also restarts what launch/train.sh --stop has stopped: end the watch first.

  --dry-run          print the commands of one round instead of running them
  --cluster=FILE     all settings of cluster.env (default: cluster.env beside this script)
  --workdir=DIR      a folder in a bucket, or on a disk that all workers share and that outlives them
  --revision=COMMIT  what setup.sh sends (default: HEAD, with everything committed)
  --poll_secs=N      seconds between two polls (default: 60)
  --hung_secs=N      seconds without a line of output from any worker after which a run is stuck: its
                     stacks are collected, and it is restarted (default: 4000, more than the 3600 of
                     config.hosts.stuck_secs, whose watchdog names what hangs and ends the run)
  --tries=N          give up after so many tries in a row without a newer checkpoint (default: 5)
  --doctor           check a TPU VM that was just set up, as launch/train.sh --doctor does, before training on
                     it; where something is wrong it is set up and checked again, which counts as a try
  --price=USD        dollars per chip-hour (default: bert_jax/planning/prices.json, which is on demand)
  --state_dir=DIR    folder of events.log, stacks and this script's state (default:
                     ~/.local/state/bert_jax/PROJECT.ZONE.TPU_NAME)
  --delete_at_end    delete the TPU VM once training has finished; if it failed for good (2, 3 or no more
                     tries) only with a workdir in a bucket; never if only the watch ends

Exit code: 0 when training has finished; 2 or 3 as soon as a worker ends so (bert_jax/runtime/exit_codes.py),
or if this script refuses; 1 if it gives up; 130 after a signal.
Not yet run against Google Cloud.
USAGE
}

POLL_SECS=60 HUNG_SECS=4000 MAX_TRIES=5 STATE_DIR='' REVISION='' DELETE_AT_END=false WORK_DIR=''
IS_EXAMINED=false TRAIN_FLAGS=()
# Longest outage of Google Cloud before this gives up, and longest pause between two queries.
readonly OUTAGE_SECS=43200 MAX_PAUSE_SECS=600

# Whether we have seen the TPU VM; looks in a row that did not find it nonetheless.
IS_EXPECTED=false MISSING=0
# What delete.sh said.
SAID=''
# Whether gcloud failed in this look, since when it does in each, and the pause that follows.
HAS_FAILED=false UNANSWERED_SINCE='' PAUSE=0

take_arguments() {
    local flag
    while (($#)); do
        case $1 in
            --revision=?*) REVISION=${1#*=} ;;
            --poll_secs=*) POLL_SECS=${1#*=} ;;
            --hung_secs=*) HUNG_SECS=${1#*=} ;;
            --tries=*) MAX_TRIES=${1#*=} ;;
            --price=*) PRICE=${1#*=} ;;
            --state_dir=?*) STATE_DIR=${1#*=} ;;
            --delete_at_end) DELETE_AT_END=true ;;
            --doctor) IS_EXAMINED=true ;;
            *) take_option "$1" || TRAIN_FLAGS+=("$1") ;;
        esac
        shift
    done
    [[ $POLL_SECS =~ ^([1-9][0-9]{0,4}|0\.[0-9]{1,2})$ ]] ||
        refuse "--poll_secs=$POLL_SECS is not a number of seconds; try --poll_secs=60"
    [[ $HUNG_SECS =~ ^[1-9][0-9]{0,6}$ ]] ||
        refuse "--hung_secs=$HUNG_SECS is not a whole number from 1; try --hung_secs=4000"
    [[ $MAX_TRIES =~ ^[1-9][0-9]{0,4}$ ]] ||
        refuse "--tries=$MAX_TRIES is not a whole number from 1; try --tries=5"
    [[ -z $PRICE || $PRICE =~ ^[0-9]{1,6}(\.[0-9]{1,6})?$ ]] ||
        refuse "--price=$PRICE is not dollars per chip-hour; try --price=1.2"
    for flag in ${TRAIN_FLAGS[@]+"${TRAIN_FLAGS[@]}"}; do
        if [[ $flag == --workdir=* ]]; then WORK_DIR=${flag#*=}; fi
    done
    # Two spellings of a folder are one run.
    while [[ $WORK_DIR == ?*/ ]]; do WORK_DIR=${WORK_DIR%/}; done
    [[ $WORK_DIR == gs://?* || $WORK_DIR == /?* || -z $WORK_DIR ]] ||
        refuse "--workdir=$WORK_DIR is in REMOTE_DIR on a disk of the TPU VM, and is deleted with it; give a" \
            "folder in a bucket, such as gs://BUCKET/runs/a, or on a disk that outlives it, such as /mnt/runs/a"
}

script() { "$LAUNCH/$1" "--cluster=$CLUSTER" ${2+"${@:2}"}; }

# The other scripts refuse here, before anything costs money.
print_round() {
    local examine=()
    DRY_RUN=true
    describe_queued
    script create.sh --dry-run || exit
    describe_node
    script setup.sh --dry-run ${REVISION:+"--revision=$REVISION"} || exit
    if $IS_EXAMINED; then examine=(--doctor); fi
    script train.sh --dry-run --skip_config_check ${examine[@]+"${examine[@]}"} "${TRAIN_FLAGS[@]}" || exit
    ask_workers
    ask_for_stacks
    stop_workers
    script delete.sh --dry-run --yes
}

# failed WORDS_OF_GCLOUD WHAT: logs a failed request to Google Cloud; the next look tries again.
failed() {
    local words
    words=$(gcloud_words "$1")
    HAS_FAILED=true
    if is_permanent "$1"; then give_up 1 "$2: $words"; fi
    UNANSWERED_SINCE=${UNANSWERED_SINCE:-$(now)}
    if (($(now) - UNANSWERED_SINCE >= OUTAGE_SECS)); then
        give_up 1 "$2, for $((OUTAGE_SECS / 3600)) h now: $words"
    fi
    PAUSE=$(awk -v pause="$PAUSE" -v poll="$POLL_SECS" -v most="$MAX_PAUSE_SECS" \
        'BEGIN { pause = 2 * (pause > poll ? pause : poll); print pause < most ? pause : most }')
    event "$2: $words; retrying in $PAUSE s"
}

create() {
    local said
    check_tries
    if said=$(script create.sh 2>&1); then
        event "requested $TPU_NAME ($ACCELERATOR_TYPE)"
        forget_vm
        remember
        IS_EXPECTED=true MISSING=0
    else
        failed "$said" "$TPU_NAME could not be requested"
    fi
}

# Deletes the TPU VM, or fails with the exit code of delete.sh. What is not there is deleted; it may also
# go minutes after delete.sh has come back, well or badly, and is not somebody else's doing then.
delete_vm() {
    local status=0
    IS_DELETION_ASKED=true
    remember
    SAID=$(script delete.sh --yes 2>&1) || status=$?
    ((status != 0)) || return 0
    ((status != 2)) || return 2
    is_absent "$SAID" || { ask_state 2>/dev/null && [[ $STATE == ABSENT ]]; } || return "$status"
}

# lost WHY: deletes the TPU VM; the next look finds none and asks for another.
lost() {
    local status=0
    event "$TPU_NAME is lost ($1); deleting and recreating it"
    if ! $IS_WRITTEN_OFF; then
        IS_WRITTEN_OFF=true
        # One that never came to training was a try as well.
        if ! $WAS_TRIED; then TRIES=$((TRIES + 1)); fi
        write_off "$(now)"
    fi
    delete_vm || status=$?
    if ((status == 2)); then
        give_up 2 "${SAID#error: }"
    elif ((status != 0)); then
        failed "$SAID" "$TPU_NAME could not be deleted"
    fi
}

# One that somebody else has deleted is not recreated.
absent() {
    if $IS_DELETION_ASKED || ! $IS_EXPECTED; then
        if [[ -n $BORN ]]; then write_off "$LOOKED"; fi
        create
        return
    fi
    MISSING=$((MISSING + 1))
    waiting "not found, look $MISSING of 3"
    if ((MISSING == 3)); then
        write_off "$LOOKED"
        give_up 1 "$TPU_NAME is gone and this script did not delete it; run the same command to recreate it"
    fi
}

look() {
    local errors=$STATE_DIR/gcloud_said
    if ! ask_state 2>"$errors"; then
        failed "$(<"$errors")" "the state of $TPU_NAME is unknown"
        return
    fi
    if [[ $STATE == ABSENT ]]; then
        absent
        return
    fi
    [[ $MARK == "$LABEL" ]] ||
        give_up 2 "$TPU_NAME has the label launched_by='$MARK', not '$LABEL': create.sh did not create it with" \
            "this cluster.env, and it is left alone; set LABEL, or change TPU_NAME"
    IS_EXPECTED=true MISSING=0 LOOKED=$(now)
    remember
    case $STATE in
        ACTIVE) look_at_workers ;;
        SUSPENDING | SUSPENDED | FAILED) lost "$STATE" ;;
        *) waiting "$STATE" ;;
    esac
}

main() {
    local farewell=''
    take_arguments "$@"
    read_cluster
    check_settings PROJECT ZONE TPU_NAME ACCELERATOR_TYPE RUNTIME_VERSION SPOT BUCKET INTERNAL_IPS LABEL \
        REMOTE_DIR REMOTE_PYTHON
    (print_round >/dev/null) || exit
    check_config "$REVISION" "${TRAIN_FLAGS[@]}"
    if $DRY_RUN; then
        print_round
        return
    fi
    check_gcloud
    # Whatever is committed meanwhile, each TPU VM gets the same code.
    [[ -n $REVISION ]] || REVISION=$(git -C "$LAUNCH" rev-parse HEAD)
    STATE_DIR=${STATE_DIR:-$HOME/.local/state/bert_jax/${PROJECT//:/.}.$ZONE.$TPU_NAME}
    begin_events
    trap 'ended_by_hand' INT TERM
    if $DELETE_AT_END; then farewell=' and is deleted at the end'; fi
    event "watching $TPU_NAME, which trains into $WORK_DIR$farewell; commit $REVISION, tries $MAX_TRIES; events go to $STATE_DIR/events.log"
    while :; do
        HAS_FAILED=false
        look
        $HAS_FAILED || PAUSE=0 UNANSWERED_SINCE=''
        if $HAS_FAILED; then nap "$PAUSE"; else nap "$POLL_SECS"; fi
    done
}

main "$@"
