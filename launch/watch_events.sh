# shellcheck shell=bash
# Sourced by watch.sh: what it writes down, what it remembers from one run to the next, and how it ends.

# Seconds since 1970 at which the TPU VM was made, empty without one, and at the last look that found it;
# seconds that those before it existed.
BORN='' LOOKED='' SPENT_SECS=0
# Tries in a row without a newer checkpoint; the newest when they began, and now; - is none.
# shellcheck disable=SC2034  # watch_workers.sh asks
TRIES=0 BEST=- SEEN=-
# What waiting said last, and when; the process that a pause waits for.
WAITING='' WAITING_SINCE=0 NAPPING=''

now() { date +%s; }

begin_events() {
    local name value other run=''
    mkdir -p "$STATE_DIR"
    if other=$(cat "$STATE_DIR/pid" 2>/dev/null) && kill -0 "$other" 2>/dev/null; then
        refuse "process $other watches $TPU_NAME already; end it first, or remove $STATE_DIR/pid if it is" \
            "no watch.sh"
    fi
    echo $$ >"$STATE_DIR/pid"
    trap 'rm -f "$STATE_DIR/pid"' EXIT
    [[ -f $STATE_DIR/state ]] || return 0
    while IFS='=' read -r name value; do
        case $name in
            BORN) BORN=$value ;;
            LOOKED) LOOKED=$value ;;
            SPENT_SECS) SPENT_SECS=$value ;;
            TRIES) TRIES=$value ;;
            BEST) BEST=$value ;;
            SEEN) SEEN=$value ;;
            RUN) run=$value ;;
        esac
        [[ $name == RUN || ($name =~ ^[A-Z_]+$ && $value =~ ^([0-9]{0,15}|-)$) ]] ||
            refuse "$STATE_DIR/state has the line '$name=$value', which watch.sh did not write; remove the" \
                "file: what was spent is then counted anew"
    done <"$STATE_DIR/state"
    if [[ $run != "$WORK_DIR" ]]; then SPENT_SECS=0 TRIES=0 BEST=- SEEN=-; fi
}

remember() {
    printf '%s\n' "RUN=$WORK_DIR" "BORN=$BORN" "LOOKED=$LOOKED" "SPENT_SECS=$SPENT_SECS" "TRIES=$TRIES" \
        "BEST=$BEST" "SEEN=$SEEN" >"$STATE_DIR/state.new"
    mv "$STATE_DIR/state.new" "$STATE_DIR/state"
}

# existed_secs [UNTIL]
existed_secs() {
    local until=${1:-$(now)}
    if [[ -n $BORN ]] && ((until > BORN)); then echo $((SPENT_SECS + until - BORN)); else echo "$SPENT_SECS"; fi
}

# write_off WHEN: the TPU VM costs nothing any more.
write_off() {
    SPENT_SECS=$(existed_secs "$1")
    BORN=''
    remember
}

event() {
    local line
    line="$(date -u +%FT%TZ) $*; spent: $(money "$(existed_secs)")"
    echo "$line"
    echo "$line" >>"$STATE_DIR/events.log"
    WAITING=''
}

# waiting WHAT [MORE]: an event when WHAT is new, and every ten minutes.
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

say_what_costs() {
    [[ $STATE == ABSENT ]] && return
    echo "$TPU_NAME may still cost money ($(money 3600) an hour), until: launch/delete.sh$SAME_CLUSTER" >&2
}

# end CODE WORDS: the end, well or badly, of the watch.
end() {
    local code=$1 said
    shift
    # The next watch.sh has tries of its own.
    TRIES=0
    remember
    event "$*"
    if $DELETE_AT_END && [[ $STATE != ABSENT ]] && { ((code == 0)) || [[ $WORK_DIR == gs://* ]]; }; then
        if said=$(script delete.sh --yes 2>&1); then
            STATE=ABSENT
            write_off "$(now)"
            event "deleted $TPU_NAME"
        else
            event "$TPU_NAME could not be deleted: $(gcloud_words "$said")"
        fi
    fi
    say_what_costs
    exit "$code"
}

give_up() { end "$1" "given up: ${*:2}"; }

ended_by_hand() {
    trap - INT TERM
    [[ -z $NAPPING ]] || kill "$NAPPING" 2>/dev/null || true
    event "the watch is ended by hand; training goes on, and the same command takes the watch up again"
    say_what_costs
    exit 130
}
