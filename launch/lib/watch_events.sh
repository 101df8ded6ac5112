# shellcheck shell=bash
# Sourced by watch.sh: its events, its state from one watch to the next, and how it ends.

# Seconds since 1970 at which the TPU VM was made, empty without one, and at the last look that found it;
# seconds that those before it existed.
BORN='' LOOKED='' SPENT_SECS=0
# The same as BORN, also once what it cost is written off: another time is another TPU VM.
CREATED=''
# Tries in a row that left the newest checkpoint as it was; the newest when the last one began, and now; - is
# none.
# shellcheck disable=SC2034  # watch_workers.sh asks
TRIES=0 BEST=- SEEN=-
IS_COST_SAID=false
# What waiting said last, and when; the process that a pause waits for, and the one that has a limit of time.
WAITING='' WAITING_SINCE=0 NAPPING='' LIMITED=''

now() { date +%s; }

begin_events() {
    local name value other=0 run=''
    mkdir -p "$STATE_DIR"
    if set_number other "$(head -c 20 "$STATE_DIR/pid" 2>/dev/null)" 9 && kill -0 "$other" 2>/dev/null; then
        refuse "process $other watches $TPU_NAME already; end it first, or remove $STATE_DIR/pid if that process" \
            "is no watch.sh"
    fi
    echo $$ >"$STATE_DIR/pid"
    trap 'rm -f "$STATE_DIR/pid"; say_what_costs' EXIT
    [[ -f $STATE_DIR/state ]] || return 0
    while IFS='=' read -r name value; do
        case $name in
            RUN) run=$value ;;
            BORN | CREATED | LOOKED) [[ -z $value ]] || set_number "$name" "$value" ;;
            SPENT_SECS | TRIES) set_number "$name" "$value" ;;
            BEST | SEEN) [[ $value == - ]] || set_number "$name" "$value" ;;
            DELETION_ASKED) if [[ $value == 1 ]]; then IS_DELETION_ASKED=true; else [[ $value == 0 ]]; fi ;;
            *) false ;;
        esac ||
            refuse "$STATE_DIR/state has the line '${name:0:100}=${value:0:100}', which watch.sh did not write;" \
                "remove the file: spending is then counted from zero"
    done <"$STATE_DIR/state"
    CREATED=${CREATED:-$BORN}
    if [[ $run != "$WORK_DIR" ]]; then SPENT_SECS=0 TRIES=0 BEST=- SEEN=-; fi
}

remember() {
    local asked=0
    if $IS_DELETION_ASKED; then asked=1; fi
    printf '%s\n' "RUN=$WORK_DIR" "BORN=$BORN" "CREATED=$CREATED" "LOOKED=$LOOKED" "SPENT_SECS=$SPENT_SECS" \
        "DELETION_ASKED=$asked" "TRIES=$TRIES" "BEST=$BEST" "SEEN=$SEEN" >"$STATE_DIR/state.new"
    mv "$STATE_DIR/state.new" "$STATE_DIR/state"
}

# existed_secs [UNTIL]
existed_secs() {
    local until=${1:-$(now)}
    if [[ -n $BORN ]] && ((until > BORN)); then echo $((SPENT_SECS + until - BORN)); else echo "$SPENT_SECS"; fi
}

# write_off WHEN: the TPU VM costs nothing from then on.
write_off() {
    SPENT_SECS=$(existed_secs "$1")
    BORN=''
    remember
}

event() {
    local line
    line=$(escape_line "$(date -u +%FT%TZ) $*; spent: $(money "$(existed_secs)")")
    printf '%s\n' "$line"
    printf '%s\n' "$line" >>"$STATE_DIR/events.log"
    WAITING=''
}

# waiting WHAT [MORE]: logs an event if WHAT is new, and every ten minutes.
waiting() {
    if [[ $1 == "$WAITING" ]] && (($(now) - WAITING_SINCE < 600)); then return; fi
    event "$TPU_NAME: $1${2-}"
    WAITING=$1 WAITING_SINCE=$(now)
}

# A signal ends a wait at once, and would wait for the end of a sleep.
nap() {
    sleep "$1" &
    NAPPING=$!
    wait "$NAPPING" || true
    NAPPING=''
}

# within SECS FILE COMMAND ...: its output goes to FILE, its errors to gcloud_said; 124 when it was ended after
# SECS. macOS has no timeout; a process group of its own ends with all that the command has started.
within() {
    local deadline=$((SECONDS + $1)) file=$2 status=0 was_ended=false
    shift 2
    set -m
    "$@" </dev/null >"$file" 2>"$STATE_DIR/gcloud_said" &
    LIMITED=$!
    set +m
    while kill -0 "$LIMITED" 2>/dev/null && ((SECONDS < deadline)); do nap 0.1; done
    if kill -0 "$LIMITED" 2>/dev/null; then
        was_ended=true
        kill -TERM -- "-$LIMITED" 2>/dev/null || true
        nap 1
        kill -KILL -- "-$LIMITED" 2>/dev/null || true
        echo 'no answer within the time limit' >>"$STATE_DIR/gcloud_said"
    fi
    wait "$LIMITED" 2>/dev/null || status=$?
    LIMITED=''
    if $was_ended; then status=124; fi
    return "$status"
}

# However the watch ends; once.
say_what_costs() {
    if $IS_COST_SAID || [[ $STATE == ABSENT ]]; then return; fi
    IS_COST_SAID=true
    echo "$TPU_NAME may still cost money ($(money 3600) an hour), until: launch/delete.sh$SAME_CLUSTER" >&2
}

# end CODE WHOSE WORDS: ends the run, well or badly, or the watch alone: then a run, ours or another, may be
# alive, and the TPU VM stays.
end() {
    local code=$1 whose=$2
    shift 2
    # The next watch.sh has tries of its own, and looks for itself whether the TPU VM is lost.
    TRIES=0 IS_DELETION_ASKED=false
    remember
    event "$*"
    if $DELETE_AT_END && [[ $whose == run && $STATE != ABSENT && ($code == 0 || $WORK_DIR == gs://*) ]]; then
        if delete_vm; then
            STATE=ABSENT
            write_off "$(now)"
            event "deleted $TPU_NAME"
        else
            IS_DELETION_ASKED=false
            remember
            event "$TPU_NAME could not be deleted: $(gcloud_words "$SAID")"
        fi
    fi
    say_what_costs
    exit "$code"
}

give_up() { end "$1" watch "gave up: ${*:2}"; }

ended_by_hand() {
    trap - INT TERM
    [[ -z $NAPPING ]] || kill "$NAPPING" 2>/dev/null || true
    [[ -z $LIMITED ]] || kill -- "-$LIMITED" 2>/dev/null || true
    event "the watch was stopped by a signal; training continues, and the same command resumes the watch"
    say_what_costs
    exit 130
}
