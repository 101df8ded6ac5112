# shellcheck shell=bash
# Sourced by the scripts beside it: reads and checks cluster.env, finds gcloud, runs or prints a command.
# shellcheck disable=SC2034  # the variables are theirs

LAUNCH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CLUSTER=$LAUNCH/cluster.env
# What to add to a script that is named as the next one to run.
SAME_CLUSTER=''
DRY_RUN=false
# Where train.sh writes and logs.sh reads, from REMOTE_DIR.
LOG=logs/train.log

SETTINGS='PROJECT ZONE TPU_NAME ACCELERATOR_TYPE RUNTIME_VERSION SPOT REMOTE_DIR REMOTE_PYTHON'
PROJECT='' ZONE='' TPU_NAME='' ACCELERATOR_TYPE='' RUNTIME_VERSION='' SPOT=''
REMOTE_DIR='' REMOTE_PYTHON=''

refuse() {
    echo "error: $*" >&2
    exit 2
}

# Takes an option that every script has; fails where $1 is none. The script defines usage.
take_option() {
    case $1 in
        -h | --help) usage && exit ;;
        --dry-run) DRY_RUN=true ;;
        --cluster=*)
            CLUSTER=${1#*=}
            SAME_CLUSTER=" $(quoted "$1")"
            ;;
        *) return 1 ;;
    esac
}

refuse_option() {
    refuse "'$2' is no option of launch/$1; see launch/$1 --help"
}

# The lines are read as text: a file that was sourced could run anything.
read_cluster() {
    local line name
    [[ -f $CLUSTER ]] || refuse "$CLUSTER: there is no such file; copy launch/cluster.env and fill it in"
    while IFS= read -r line || [[ -n $line ]]; do
        line=${line%$'\r'}
        [[ $line =~ ^[[:space:]]*(#.*)?$ ]] && continue
        name=${line%%=*}
        [[ $line == *=* && " $SETTINGS " == *" $name "* ]] ||
            refuse "$CLUSTER: '$line' is not NAME=VALUE with NAME one of ${SETTINGS// /, }"
        printf -v "$name" '%s' "${line#*=}"
    done <"$CLUSTER"
}

# Each name given has a value of its form.
check_settings() {
    local name form example
    local path='[A-Za-z0-9._/][A-Za-z0-9._/-]*'
    for name in "$@"; do
        case $name in
            PROJECT) form='([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]' example=my-project ;;
            ZONE) form='[a-z]+-[a-z]+[0-9]+-[a-z0-9]+' example=us-central2-b ;;
            TPU_NAME) form='[a-z]([-a-z0-9]{0,61}[a-z0-9])?' example=my-tpu ;;
            ACCELERATOR_TYPE) form='(v|tpu)[0-9]+[a-z]*-[0-9]+' example=v5litepod-16 ;;
            RUNTIME_VERSION) form='[a-z][a-z0-9.-]*' example=v2-alpha-tpuv5-lite ;;
            SPOT) form='true|false' example='true or false' ;;
            REMOTE_DIR) form=$path example=bert_jax ;;
            REMOTE_PYTHON) form=$path example=.venv/bin/python ;;
        esac
        [[ -n ${!name} ]] || refuse "$CLUSTER: $name is empty; give it a value, such as $name=$example"
        [[ ${!name} =~ ^($form)$ ]] ||
            refuse "$CLUSTER: $name is '${!name}', which is not of the form of $example"
    done
}

check_gcloud() {
    local property
    command -v gcloud >/dev/null ||
        refuse "gcloud is not on PATH; install it (https://cloud.google.com/sdk/docs/install) and" \
            "run 'gcloud auth login', or see the command with --dry-run"
    # The list has the account of a machine inside Google Cloud, but not what the two properties name.
    [[ -z $(gcloud auth list --filter=status:ACTIVE '--format=value(account)' 2>/dev/null) ]] || return 0
    for property in auth/access_token_file auth/credential_file_override; do
        [[ -z $(gcloud config get "$property" 2>/dev/null) ]] || return 0
    done
    refuse "gcloud is not logged in: 'gcloud auth list' shows no active account; run 'gcloud auth login'"
}

# One shell word per argument, quoted for bash; printf %q would put a backslash before every blank.
quoted() {
    local rest word words='' quote="'"
    for rest in "$@"; do
        if [[ $rest =~ ^[A-Za-z0-9_/.,:=@%+-]+$ ]]; then
            words+=" $rest"
            continue
        fi
        word=''
        while [[ $rest == *$quote* ]]; do
            word+=${rest%%"$quote"*}"'\\''"
            rest=${rest#*"$quote"}
        done
        words+=" '$word$rest'"
    done
    printf '%s\n' "${words# }"
}

run_or_print() {
    if $DRY_RUN; then quoted "$@"; else "$@"; fi
}

# on_workers WORKER COMMAND: WORKER is a number or all.
on_workers() {
    run_or_print gcloud compute tpus tpu-vm ssh "$TPU_NAME" "--zone=$ZONE" "--project=$PROJECT" \
        "--worker=$1" "--command=$2"
}
