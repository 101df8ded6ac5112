#!/usr/bin/env bash
# Keep a training run going until its end: make the TPU VM again when it is lost, training when it fails.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=cluster.sh
source "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
# shellcheck source-path=SCRIPTDIR source=config_check.sh
source "$LAUNCH/config_check.sh"
# shellcheck source-path=SCRIPTDIR source=gcloud_errors.sh
source "$LAUNCH/gcloud_errors.sh"
# shellcheck source-path=SCRIPTDIR source=queued_resource.sh
source "$LAUNCH/queued_resource.sh"
# shellcheck source-path=SCRIPTDIR source=spending.sh
source "$LAUNCH/spending.sh"
# shellcheck source-path=SCRIPTDIR source=watch_events.sh
source "$LAUNCH/watch_events.sh"
# shellcheck source-path=SCRIPTDIR source=watch_workers.sh
source "$LAUNCH/watch_workers.sh"

usage() {
    cat <<'USAGE'
usage: launch/watch.sh [OPTION ...] --config=FILE --workdir=DIR [TRAIN_FLAG ...]

Resolves the config here, as launch/train.sh does, and looks at the TPU VM again and again until training has come to its end. One that is not there is
asked for (create.sh), set up (setup.sh) and trained on (train.sh). One that Google Cloud has taken
back or lost is deleted, with its disks, and made again; a run that failed, or from which nothing has
been heard for long, is stopped on all workers and started again. Each start goes on from the newest
checkpoint. It runs here, on a laptop or a small VM: when it is ended or this machine is, training
goes on, and the same command takes the watch up again. What launch/train.sh --stop ends from elsewhere
is started again as long as a watch.sh runs: end that first.

  --dry-run          print the commands of one round instead of running them
  --cluster=FILE     all settings of cluster.env (default: cluster.env beside this script)
  --workdir=DIR      a folder in a bucket, or on a disk that all workers share and that outlives them
  --revision=COMMIT  what setup.sh sends (default: HEAD, with everything committed)
  --poll_secs=N      pause between two looks (default: 60)
  --hung_secs=N      without a line of output from any worker for so long, a run is taken to be stuck:
                     stacks are collected, and it is started again (default: 4000, more than the
                     3600 of config.hosts.stuck_secs: its own watchdog names what hangs, and ends it)
  --tries=N          give up after so many tries in a row that each left the newest checkpoint as it
                     was (default: 5)
  --price=USD        dollars a chip and hour (default: bert_jax/prices.json, which is on demand)
  --state_dir=DIR    for events.log, stacks and what this script has to remember (default:
                     ~/.local/state/bert_jax/PROJECT.ZONE.TPU_NAME)
  --delete_at_end    delete the TPU VM once training has come to its end; where it failed for good (2, 3
                     or no more tries) only if the workdir is in a bucket; never where the watch alone ends

Exit code: 0 when training has ended; 2 or 3 as soon as a worker ends so (bert_jax/exit_codes.py), or
where this script refuses; 1 where it gives up; 130 when it is ended by hand.
Not yet run against Google Cloud.
USAGE
}

POLL_SECS=60 HUNG_SECS=4000 MAX_TRIES=5 STATE_DIR='' REVISION='' DELETE_AT_END=false WORK_DIR=''
TRAIN_FLAGS=()
# How long Google Cloud may fail to answer before this gives up; and how long to wait at most between.
readonly OUTAGE_SECS=43200 LONGEST_PAUSE_SECS=600

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
            *) take_option "$1" || TRAIN_FLAGS+=("$1") ;;
        esac
        shift
    done
    [[ $POLL_SECS =~ ^([1-9][0-9]{0,4}|0\.[0-9]{1,2})$ ]] ||
        refuse "--poll_secs=$POLL_SECS is not a number of seconds; try --poll_secs=60"
    [[ $HUNG_SECS =~ ^[1-9][0-9]{0,6}$ ]] ||
        refuse "--hung_secs=$HUNG_SECS is not a number of seconds from 1 on; try --hung_secs=4000"
    [[ $MAX_TRIES =~ ^[1-9][0-9]{0,4}$ ]] ||
        refuse "--tries=$MAX_TRIES is not a number from 1 on; try --tries=5"
    [[ -z $PRICE || $PRICE =~ ^[0-9]{1,6}(\.[0-9]{1,6})?$ ]] ||
        refuse "--price=$PRICE is not dollars a chip and hour; try --price=1.2"
    for flag in ${TRAIN_FLAGS[@]+"${TRAIN_FLAGS[@]}"}; do
        if [[ $flag == --workdir=* ]]; then WORK_DIR=${flag#*=}; fi
    done
    # Which run it is does not depend on how its folder is written.
    while [[ $WORK_DIR == ?*/ ]]; do WORK_DIR=${WORK_DIR%/}; done
    [[ $WORK_DIR == gs://?* || $WORK_DIR == /?* || -z $WORK_DIR ]] ||
        refuse "--workdir=$WORK_DIR lies in REMOTE_DIR on a disk of the TPU VM, which goes with it; give a" \
            "folder in a bucket, such as gs://BUCKET/runs/a, or on a disk that outlives it, such as /mnt/runs/a"
}

script() { "$LAUNCH/$1" "--cluster=$CLUSTER" ${2+"${@:2}"}; }

# What the other scripts refuse is said before anything costs money.
print_round() {
    DRY_RUN=true
    describe_queued
    script create.sh --dry-run || exit
    describe_node
    script setup.sh --dry-run ${REVISION:+"--revision=$REVISION"} || exit
    script train.sh --dry-run --skip_config_check "${TRAIN_FLAGS[@]}" || exit
    ask_workers
    ask_for_stacks
    stop_workers
    script delete.sh --dry-run --yes
}

# failed WORDS_OF_GCLOUD WHAT: Google Cloud did not do what it was asked; the next look asks again.
failed() {
    local words
    words=$(gcloud_words "$1")
    HAS_FAILED=true
    if is_permanent "$1"; then give_up 1 "$2: $words"; fi
    UNANSWERED_SINCE=${UNANSWERED_SINCE:-$(now)}
    if (($(now) - UNANSWERED_SINCE >= OUTAGE_SECS)); then
        give_up 1 "$2, for $((OUTAGE_SECS / 3600)) h now: $words"
    fi
    PAUSE=$(awk -v pause="$PAUSE" -v poll="$POLL_SECS" -v most="$LONGEST_PAUSE_SECS" \
        'BEGIN { pause = 2 * (pause > poll ? pause : poll); print pause < most ? pause : most }')
    event "$2: $words; asked again in $PAUSE s"
}

create() {
    local said
    check_tries
    if said=$(script create.sh 2>&1); then
        event "asked for $TPU_NAME ($ACCELERATOR_TYPE)"
        forget_vm
        remember
        IS_EXPECTED=true MISSING=0
    else
        failed "$said" "$TPU_NAME could not be asked for"
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
    event "$TPU_NAME is lost ($1); it is deleted and made again"
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

# One that somebody else has deleted is not made again.
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
        give_up 1 "$TPU_NAME is gone and this script did not delete it; it is not made again unless you ask"
    fi
}

look() {
    local errors=$STATE_DIR/gcloud_said
    if ! ask_state 2>"$errors"; then
        failed "$(<"$errors")" "the state of $TPU_NAME is not known"
        return
    fi
    if [[ $STATE == ABSENT ]]; then
        absent
        return
    fi
    [[ $MARK == "$LABEL" ]] ||
        give_up 2 "$TPU_NAME has the label launched_by='$MARK', not '$LABEL': create.sh did not make it with" \
            "this cluster.env, and it is left alone; set LABEL, or give TPU_NAME another name"
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
