# shellcheck shell=bash
# Sourced by watch.sh: queries the workers of an ACTIVE TPU VM, and acts on their answers.

# Looks in a row without an answer from all workers after which the TPU VM is recreated; looks in a row
# that find training on some workers only, after which it is restarted.
readonly UNREACHED_LIMIT=5 PARTIAL_LIMIT=2
# How long a question to all workers, --stop included, a setup.sh, a train.sh and one with --doctor may take.
readonly LOOK_SECS=180 SETUP_SECS=3600 START_SECS=600 EXAMINED_START_SECS=1600
# So much of what the workers answer is read: an answer has some 50 bytes, and a pod at most 2,048 workers.
readonly ANSWERS_BYTES=1000000
# An answer behind the word worker: its name, and what on_worker_train.sh --status says. File systems whose
# clock is ahead make the seconds since the last line less than zero. Further answers that are none are counted.
readonly ANSWER_FORM='^[A-Za-z0-9._-]{1,64} (running ([0-9]{1,9}|-) -?[0-9]{1,9} ([0-9]{1,15}|-)|busy ([0-9]{1,9}|-)|'\
'ended [0-9]{1,3} ([0-9]{1,15}|-)|never started|not set up)$'
readonly JUNK_LINES=3
# What the node says of itself: its state and how many workers it has.
NODE_STATE='' WORKER_COUNT=0

# What we know of this TPU VM says nothing of the next one with its name.
forget_vm() {
    # Whether it is ready to train, a try was made on it, we have seen training on it, its end has been
    # written down, and its deletion was requested.
    # shellcheck disable=SC2034
    IS_READY=false WAS_TRIED=false HAS_TRAINED=false IS_WRITTEN_OFF=false IS_DELETION_ASKED=false
    # Since when it is there and not ready; looks in a row that found training on some workers only, or did
    # not reach all of them; the newest checkpoint at the first of these.
    NOT_READY_SINCE='' PARTIAL=0 UNREACHED=0 UNREACHED_AT=-
}
forget_vm

in_remote_dir() {
    echo "cd $(quoted "$REMOTE_DIR") 2>/dev/null && bash launch/worker/on_worker_train.sh $(quoted "$1" "$LOG" "${@:2}")"
}

describe_node() {
    run_or_print gcloud compute tpus tpu-vm describe "$TPU_NAME" "--zone=$ZONE" "--project=$PROJECT" \
        '--format=value[separator=" "](state,createTime,networkEndpoints.len())'
}

ask_workers() {
    local status
    status=$(in_remote_dir --status "$WORK_DIR")
    on_workers all "echo \"worker \$HOSTNAME \$({ $status; } 2>/dev/null || echo not set up)\""
}

ask_for_stacks() { on_workers all "$(in_remote_dir --stacks) | sed \"s/^/\$HOSTNAME: /\""; }

stop_workers() { on_workers all "$(in_remote_dir --stop)"; }

# The last lines of the workers that ended with a code after which no start helps.
last_words() {
    on_workers all "cd $(quoted "$REMOTE_DIR") &&
if grep -qxE '${FINAL_CODES// /|}' ${LOG%.log}.exit_code 2>/dev/null; then
tail -n 20 $LOG | sed \"s/^/\$HOSTNAME: /\"; fi"
}

# Sets NODE_STATE and WORKER_COUNT, and BORN once for each TPU VM.
ask_node() {
    local said line created
    if ! said=$(describe_node 2>&1); then
        if is_absent "$said"; then
            NODE_STATE=GONE
            return 0
        fi
        failed "$said" "the state of the TPU VM $TPU_NAME is unknown"
        return 1
    fi
    NODE_STATE=UNKNOWN
    while IFS= read -r line; do
        [[ $line =~ ^([A-Z_]+)\ ([0-9TZ:.-]+)\ ([0-9]+)$ ]] || continue
        set_number WORKER_COUNT "${BASH_REMATCH[3]}" 6 || continue
        NODE_STATE=${BASH_REMATCH[1]} created=${BASH_REMATCH[2]}
        created=$(epoch_of "$created" || echo "${CREATED:-$(now)}")
        if [[ $created != "$CREATED" ]]; then
            if [[ -n $BORN ]]; then write_off "$LOOKED"; fi
            forget_vm
            BORN=$created CREATED=$created
            remember
        fi
    done <<<"$said"
}

look_at_workers() {
    ask_node || return 0
    case $NODE_STATE in
        READY) NOT_READY_SINCE='' ;;
        PREEMPTED | TERMINATED | STOPPING | STOPPED | DELETING | GONE)
            lost "$NODE_STATE"
            return
            ;;
        *)
            NOT_READY_SINCE=${NOT_READY_SINCE:-$(now)}
            waiting "ACTIVE, but its TPU VM is $NODE_STATE"
            if (($(now) - NOT_READY_SINCE >= HUNG_SECS)); then lost "$NODE_STATE for $HUNG_SECS s"; fi
            return
            ;;
    esac
    if $IS_DELETION_ASKED; then
        lost 'its deletion was requested, and it still exists'
        return
    fi
    within "$LOOK_SECS" "$STATE_DIR/answers" ask_workers || true
    count_answers "$(head -c "$ANSWERS_BYTES" "$STATE_DIR/answers")"
    if ((ANSWERS < WORKER_COUNT)); then
        unreached
        return
    fi
    UNREACHED=0
    decide
}

# Workers that cannot be reached from here may train all the same: a newer checkpoint says so.
unreached() {
    local words
    words=$(gcloud_words "$(<"$STATE_DIR/gcloud_said")")
    see_bucket
    UNREACHED=$((UNREACHED + 1))
    if ((UNREACHED == 1)); then UNREACHED_AT=$SEEN; fi
    event "$ANSWERS of $WORKER_COUNT workers answer, look $UNREACHED of $UNREACHED_LIMIT: $words"
    ((UNREACHED >= UNREACHED_LIMIT)) || return 0
    if [[ $SEEN != - ]] && { [[ $UNREACHED_AT == - ]] || ((SEEN > UNREACHED_AT)); }; then
        event "training continues nonetheless: checkpoint $SEEN is newer than $UNREACHED_AT"
        UNREACHED=0
    else
        lost 'its workers cannot be reached'
    fi
}

# Sets how many workers answered, run, have finished, failed or were stopped by bad numbers or a refusal;
# the codes of those that failed; the code of the last; the shortest silence of those that run.
count_answers() {
    local line rest silent=0 code=0 step newest='' names=' ' junk=0
    ANSWERS=0 RUNNING=0 FINISHED=0 CODES='' FINAL='' SILENT_SECS='' BUSY=''
    while IFS= read -r line; do
        # Other lines are what a worker's login shell says.
        [[ $line == 'worker '* ]] || continue
        rest=${line#worker } step=''
        if [[ $rest =~ $ANSWER_FORM && $names != *" ${rest%% *} "* ]]; then
            names+="${rest%% *} " rest=${rest#* }
            # shellcheck disable=SC2086  # five words at most, of letters and digits
            set -- $rest
            case $1 in
                running)
                    set_number silent "${3#-}" || continue
                    if [[ $3 == -* ]]; then silent=0; fi
                    RUNNING=$((RUNNING + 1)) step=$4
                    if [[ -z $SILENT_SECS ]] || ((silent < SILENT_SECS)); then SILENT_SECS=$silent; fi
                    ;;
                busy) BUSY=$2 ;;
                ended)
                    set_number code "$2" || continue
                    step=$3
                    if ((code == 0)); then
                        FINISHED=$((FINISHED + 1))
                    elif [[ " $FINAL_CODES " == *" $code "* ]]; then
                        FINAL=$code
                    else
                        CODES+=" $code"
                    fi
                    ;;
            esac
            ANSWERS=$((ANSWERS + 1))
            if [[ -n $step ]]; then newest=$(newer "$step" "${newest:--}"); fi
        else
            junk=$((junk + 1))
            if ((junk <= JUNK_LINES)); then
                event "worker ${rest%% *} gave no answer of on_worker_train.sh but '${line:0:200}'"
            fi
        fi
    done <<<"$1"
    if ((junk > JUNK_LINES)); then event "$((junk - JUNK_LINES)) more such answers are not listed"; fi
    if [[ -n $newest && $WORK_DIR != gs://* ]]; then see "$newest"; fi
}

# newer STEP STEP: each a number of at most 15 digits, or -
newer() {
    local first=-1 second=-1
    set_number first "$1" || true
    set_number second "$2" || true
    if ((first > second)); then second=$first; fi
    if ((second >= 0)); then echo "$second"; else echo -; fi
}

# see STEP: the newest checkpoint that is there now; one that was damaged and moved away is there no longer.
see() {
    if [[ $1 != "$SEEN" ]]; then
        SEEN=$1
        remember
    fi
}

# Checkpoints in a bucket are seen from here; in a folder the workers say so. One that is half written has
# no commit_success.txt, Orbax's mark. Nobody knows what is there while the bucket does not answer.
see_bucket() {
    local line newest=-
    [[ $WORK_DIR == gs://* ]] || return 0
    if ! within "$LOOK_SECS" "$STATE_DIR/checkpoints" \
        gcloud storage ls "$WORK_DIR/checkpoints/*/commit_success.txt"; then
        if [[ $(<"$STATE_DIR/gcloud_said") == *'matched no objects'* ]]; then see -; fi
        return 0
    fi
    while IFS= read -r line; do
        [[ $line =~ /([0-9]{1,15})/commit_success\.txt$ ]] || continue
        newest=$(newer "${BASH_REMATCH[1]}" "$newest")
    done <"$STATE_DIR/checkpoints"
    see "$newest"
}

# Ends the watch where tries are at their limit; one after which another checkpoint is the newest than when it
# began is the last of its row.
check_tries() {
    see_bucket
    if [[ $SEEN != "$BEST" ]]; then BEST=$SEEN TRIES=0; fi
    remember
    if ((TRIES >= MAX_TRIES)); then
        end 1 run "gave up: $TRIES tries in a row reached no newer checkpoint than $BEST"
    fi
}

decide() {
    if [[ -n $BUSY ]]; then
        give_up 2 "another run than $WORK_DIR trains on $TPU_NAME (process $BUSY); wait for it to end, or stop it:" \
            "launch/train.sh$SAME_CLUSTER --stop"
    elif ((RUNNING > 0)); then
        HAS_TRAINED=true
    fi
    if ((RUNNING == 0)) && ! $HAS_TRAINED; then
        # Ends of runs that were not ours to see say nothing of the next start.
        start
    elif [[ -n $FINAL ]]; then
        within "$LOOK_SECS" "$STATE_DIR/last_words" last_words || true
        cat "$STATE_DIR/last_words"
        within "$LOOK_SECS" /dev/null stop_workers || true
        end "$FINAL" run "training ended with exit code $FINAL on a worker; a restart would end the same way"
    elif ((FINISHED == WORKER_COUNT)); then
        see_bucket
        remember
        end 0 run "training has finished"
    elif [[ -n $CODES ]]; then
        event "training failed with exit code$CODES, newest checkpoint $SEEN; restarting it"
        restart
    elif ((RUNNING == 0)); then
        start
    elif ((RUNNING + FINISHED < WORKER_COUNT)); then
        PARTIAL=$((PARTIAL + 1))
        event "training runs on $RUNNING of $WORKER_COUNT workers"
        if ((PARTIAL >= PARTIAL_LIMIT)); then restart; fi
    elif ((SILENT_SECS >= HUNG_SECS)); then
        hung
    else
        PARTIAL=0
        waiting "training runs on $RUNNING of $WORKER_COUNT workers" ", newest checkpoint $SEEN"
    fi
}

hung() {
    local stacks
    stacks=$STATE_DIR/stacks-$(date -u +%Y%m%dT%H%M%SZ).txt
    within "$LOOK_SECS" "$stacks" ask_for_stacks || true
    event "no output from training for $SILENT_SECS s, stacks in $stacks; restarting it"
    restart
}

restart() {
    within "$LOOK_SECS" /dev/null stop_workers || true
    start
}

# A look in which something fails is followed by another, which sees what there is.
start() {
    local words status=0 examine=() secs=$START_SECS
    PARTIAL=0
    check_tries
    # shellcheck disable=SC2034  # watch.sh asks
    WAS_TRIED=true
    TRIES=$((TRIES + 1))
    remember
    if ! $IS_READY; then
        within "$SETUP_SECS" "$STATE_DIR/setup.log" script setup.sh "--revision=$REVISION" || status=$?
        cat "$STATE_DIR/gcloud_said" >>"$STATE_DIR/setup.log"
        if ((status != 0)); then
            words=$(gcloud_words "$(<"$STATE_DIR/setup.log")")
            event "setup.sh failed ($words); see $STATE_DIR/setup.log"
            return
        fi
        IS_READY=true
        if $IS_EXAMINED; then examine=(--doctor) secs=$EXAMINED_START_SECS; fi
    fi
    within "$secs" "$STATE_DIR/train_sh_said" script train.sh --skip_config_check \
        ${examine[@]+"${examine[@]}"} "${TRAIN_FLAGS[@]}" || status=$?
    if ((status == 0)); then
        HAS_TRAINED=true
        event "started training, newest checkpoint $SEEN, try $TRIES of $MAX_TRIES"
    else
        ((${#examine[@]} == 0)) || IS_READY=false # else the next try would train on it unchecked
        event "train.sh failed: $(gcloud_words "$(<"$STATE_DIR/gcloud_said")")"
    fi
}
