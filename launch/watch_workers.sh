# shellcheck shell=bash
# Sourced by watch.sh: what the workers of an ACTIVE TPU VM do, and what follows from it.

# Looks in a row without an answer from all workers after which the TPU VM is made again; looks in a row
# that find training on some workers only, after which it is started again.
readonly UNREACHED_LIMIT=5 PARTIAL_LIMIT=2
PARTIAL=0
# Since when the TPU VM is there and not ready.
NOT_READY_SINCE=''
# What the node says of itself: its state and how many workers it has.
NODE_STATE='' WORKER_COUNT=0

in_remote_dir() {
    echo "cd $(quoted "$REMOTE_DIR") 2>/dev/null && bash launch/on_worker_train.sh $(quoted "$1" "$LOG" "${@:2}")"
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
    on_workers all "cd $(quoted "$REMOTE_DIR") && if grep -qx '[23]' ${LOG%.log}.exit_code 2>/dev/null; then
tail -n 20 $LOG | sed \"s/^/\$HOSTNAME: /\"; fi"
}

# Sets NODE_STATE and WORKER_COUNT, and BORN once.
ask_node() {
    local said line created
    if ! said=$(describe_node 2>&1); then
        if [[ $said == *NOT_FOUND* || $said == *'HTTPError 404'* ]]; then
            NODE_STATE=GONE
            return 0
        fi
        failed "$said" "the TPU VM $TPU_NAME says no state"
        return 1
    fi
    NODE_STATE=UNKNOWN
    while IFS= read -r line; do
        [[ $line =~ ^([A-Z_]+)\ ([0-9TZ:.-]+)\ ([0-9]+)$ ]] || continue
        NODE_STATE=${BASH_REMATCH[1]} created=${BASH_REMATCH[2]} WORKER_COUNT=${BASH_REMATCH[3]}
        created=$(epoch_of "$created" || echo "${BORN:-$(now)}")
        if [[ $created != "$BORN" ]]; then
            if [[ -n $BORN ]]; then write_off "$LOOKED"; fi
            BORN=$created
            remember
        fi
    done <<<"$said"
}

look_at_workers() {
    local said
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
    said=$(ask_workers 2>/dev/null) || true
    count_answers "$said"
    if ((ANSWERS < WORKER_COUNT)); then
        UNREACHED=$((UNREACHED + 1))
        event "$ANSWERS of $WORKER_COUNT workers answer, look $UNREACHED of $UNREACHED_LIMIT"
        if ((UNREACHED == UNREACHED_LIMIT)); then lost 'its workers cannot be reached'; fi
        return
    fi
    UNREACHED=0
    decide
}

# Sets how many workers answered, run, have finished, failed or were stopped by bad numbers or a refusal;
# the codes of those that failed; the code of the last; the shortest silence of those that run.
count_answers() {
    local line state rest code step
    ANSWERS=0 RUNNING=0 FINISHED=0 CODES='' FINAL='' SILENT_SECS='' BUSY=''
    while IFS= read -r line; do
        [[ $line =~ ^worker\ [^\ ]+\ (running|ended|never|not|busy)\ (.*)$ ]] || continue
        ANSWERS=$((ANSWERS + 1)) state=${BASH_REMATCH[1]} rest=${BASH_REMATCH[2]} step=${BASH_REMATCH[2]##* }
        case $state in
            running)
                RUNNING=$((RUNNING + 1)) rest=${rest#* } rest=${rest%% *}
                if [[ -z $SILENT_SECS ]] || ((rest < SILENT_SECS)); then SILENT_SECS=$rest; fi
                ;;
            busy) BUSY=$rest ;;
            ended)
                code=${rest%% *}
                case $code in
                    0) FINISHED=$((FINISHED + 1)) ;;
                    2 | 3) FINAL=$code ;;
                    *) CODES+=" $code" ;;
                esac
                ;;
        esac
        if [[ $step =~ ^[0-9]+$ ]]; then see_step "$step"; fi
    done <<<"$1"
}

see_step() {
    if [[ $SEEN == - ]] || (($1 > SEEN)); then
        SEEN=$1
        remember
    fi
}

# A checkpoint in a bucket is seen from here; in a folder the workers say so.
see_bucket() {
    local line
    [[ $WORK_DIR == gs://* ]] || return 0
    while IFS= read -r line; do
        if [[ $line =~ /([0-9]{1,15})/$ ]]; then see_step "$((10#${BASH_REMATCH[1]}))"; fi
    done < <(gcloud storage ls "${WORK_DIR%/}/checkpoints/" 2>/dev/null || true)
}

# Ends the watch where tries are at their limit and none of them came to a newer checkpoint.
check_tries() {
    see_bucket
    if [[ $SEEN != "$BEST" ]]; then BEST=$SEEN TRIES=0; fi
    remember
    if ((TRIES >= MAX_TRIES)); then
        give_up 1 "$TRIES tries in a row came to no newer checkpoint than $BEST"
    fi
}

decide() {
    if [[ -n $BUSY ]]; then
        give_up 2 "another run than $WORK_DIR trains on $TPU_NAME (process $BUSY); wait for its end, or end it:" \
            "launch/train.sh$SAME_CLUSTER --stop"
    elif ((RUNNING > 0)); then
        HAS_TRAINED=true
    fi
    if ((RUNNING == 0)) && ! $HAS_TRAINED; then
        # Ends of runs that were not ours to see say nothing of the next start.
        start
    elif [[ -n $FINAL ]]; then
        last_words 2>/dev/null || true
        stop_workers >/dev/null 2>&1 || true
        end "$FINAL" "training ended with exit code $FINAL on a worker, and would again"
    elif ((FINISHED == WORKER_COUNT)); then
        see_bucket
        remember
        end 0 "training has come to its end"
    elif [[ -n $CODES ]]; then
        event "training failed with exit code$CODES, newest checkpoint $SEEN; it is started again"
        restart
    elif ((RUNNING == 0)); then
        start
    elif ((RUNNING + FINISHED < WORKER_COUNT)); then
        PARTIAL=$((PARTIAL + 1))
        event "training runs on $RUNNING of $WORKER_COUNT workers"
        if ((PARTIAL == PARTIAL_LIMIT)); then restart; fi
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
    ask_for_stacks >"$stacks" 2>&1 || true
    event "nothing was heard of training for $SILENT_SECS s; the stacks are in $stacks; it is started again"
    restart
}

restart() {
    stop_workers >/dev/null 2>&1 || true
    start
}

# A look in which something fails is followed by another, which sees what there is.
start() {
    local said status=0
    PARTIAL=0
    check_tries
    # shellcheck disable=SC2034  # watch.sh asks
    WAS_TRIED=true
    TRIES=$((TRIES + 1))
    remember
    if ! $IS_READY; then
        said=$(script setup.sh "--revision=$REVISION" 2>&1) || status=$?
        printf '%s\n' "$said" >"$STATE_DIR/setup.log"
        if ((status != 0)); then
            event "setup.sh failed ($(gcloud_words "$said")); its output is in $STATE_DIR/setup.log"
            return
        fi
        IS_READY=true
    fi
    said=$(script train.sh "${TRAIN_FLAGS[@]}" 2>&1) || status=$?
    if ((status == 0)); then
        HAS_TRAINED=true
        event "training was started, newest checkpoint $SEEN, try $TRIES of $MAX_TRIES"
    else
        event "train.sh failed: $(gcloud_words "$said")"
    fi
}
