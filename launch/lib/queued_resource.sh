# shellcheck shell=bash
# Sourced after cluster.sh: the state of the queued resource TPU_NAME, and waiting for it.
# shellcheck source-path=SCRIPTDIR source=gcloud_errors.sh
source "$LAUNCH/lib/gcloud_errors.sh"

# ACTIVE, WAITING_FOR_RESOURCES and so on, ABSENT where there is none; and its label launched_by.
STATE='' MARK=''

describe_queued() {
    run_or_print gcloud compute tpus queued-resources describe "$TPU_NAME" "--zone=$ZONE" \
        "--project=$PROJECT" \
        '--format=value[separator=" "](state.state,tpu.nodeSpec[0].node.labels.launched_by)'
}

# Sets STATE and MARK; fails with gcloud's message and exit code if Google Cloud does not answer.
ask_state() {
    local said line status=0
    said=$(describe_queued 2>&1) || status=$?
    if ((status != 0)); then
        if is_absent "$said"; then
            STATE=ABSENT MARK=''
            return 0
        fi
        escape_lines <<<"$said" >&2
        return "$status"
    fi
    # gcloud may print messages of its own on stderr.
    while IFS= read -r line; do
        if [[ $line =~ ^([A-Z_]+)\ ?([a-z0-9_-]*)$ ]]; then
            STATE=${BASH_REMATCH[1]}
            # shellcheck disable=SC2034
            MARK=${BASH_REMATCH[2]}
            return 0
        fi
    done <<<"$said"
    escape_line "gcloud reported no state of $TPU_NAME but '$said'" >&2
    return 1
}

# Prints a duration such as 90s, 30m, 6h or 2d in seconds.
in_seconds() {
    local number=${1%?}
    case $1 in
        *s) echo "$number" ;;
        *m) echo $((number * 60)) ;;
        *h) echo $((number * 3600)) ;;
        *d) echo $((number * 86400)) ;;
    esac
}

# wait_until_active LIMIT_SECS POLL_SECS: prints each new state, and the state every ten minutes. Fails
# if there will be no TPU VM, at the limit, and after five failed queries in a row.
wait_until_active() {
    local limit=$1 poll=$2 former='' said_at=0 unanswered=0
    SECONDS=0
    while :; do
        if ask_state; then
            unanswered=0
        elif ((++unanswered == 5)); then
            echo "error: five queries for $TPU_NAME in a row failed" >&2
            return 1
        fi
        if [[ $STATE != "$former" ]] || ((SECONDS - said_at >= 600)); then
            echo "$(date -u +%FT%TZ) $TPU_NAME is $STATE after $((SECONDS / 60)) min"
            former=$STATE said_at=$SECONDS
        fi
        case $STATE in
            ACTIVE) return 0 ;;
            FAILED | SUSPENDING | SUSPENDED | DELETING | ABSENT)
                echo "error: $TPU_NAME is $STATE and will not become ACTIVE; run launch/delete.sh$SAME_CLUSTER," \
                    "then launch/create.sh again" >&2
                return 1
                ;;
        esac
        if ((SECONDS + poll > limit)); then
            echo "error: $TPU_NAME is still $STATE after $SECONDS s; the request stays open, and costs money once" \
                "there is capacity, until launch/delete.sh$SAME_CLUSTER" >&2
            return 1
        fi
        sleep "$poll"
    done
}
