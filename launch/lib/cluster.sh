# shellcheck shell=bash
# Sourced by the scripts beside it: reads and checks cluster.env, finds gcloud, runs or prints a command.
# shellcheck disable=SC2034  # the variables are theirs

LAUNCH=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=outside_text.sh
source "$LAUNCH/lib/outside_text.sh"
CLUSTER=$LAUNCH/cluster.env
# What to add to a script that a message names as the next one to run.
SAME_CLUSTER=''
# Which line of CLUSTER gives which setting, as " NAME=NUMBER ".
ORIGINS=''
DRY_RUN=false
# A span of time as gcloud takes it.
DURATION='[1-9][0-9]{0,5}[smhd]'
# Where train.sh writes and logs.sh reads, from REMOTE_DIR.
LOG=logs/train.log
# Codes of bert_jax/runtime/exit_codes.py after which the same command would end the same way.
FINAL_CODES='2 3'

SETTINGS='PROJECT ZONE TPU_NAME PRESET ACCELERATOR_TYPE RUNTIME_VERSION SPOT VALID_UNTIL BUCKET
SERVICE_ACCOUNT NETWORK SUBNETWORK INTERNAL_IPS COORDINATOR_PORT LABEL GKE_CLUSTER GKE_IMAGE
GKE_SERVICE_ACCOUNT REMOTE_DIR REMOTE_PYTHON'
SETTINGS=${SETTINGS//$'\n'/ }
# Those that may be empty.
OPTIONAL='PRESET VALID_UNTIL BUCKET SERVICE_ACCOUNT NETWORK SUBNETWORK COORDINATOR_PORT
GKE_SERVICE_ACCOUNT'
OPTIONAL=${OPTIONAL//$'\n'/ }
PROJECT='' ZONE='' TPU_NAME='' PRESET='' ACCELERATOR_TYPE='' RUNTIME_VERSION='' SPOT='' VALID_UNTIL=''
BUCKET='' SERVICE_ACCOUNT='' NETWORK='' SUBNETWORK='' INTERNAL_IPS=false COORDINATOR_PORT=''
LABEL=bert_jax GKE_CLUSTER='' GKE_IMAGE='' GKE_SERVICE_ACCOUNT='' REMOTE_DIR='' REMOTE_PYTHON=''

refuse() {
    escape_line "error: $*" >&2
    exit 2
}

# Refuses an argument with terminal escapes; only the command of ssh.sh may have several lines.
check_arguments() {
    local argument text
    for argument in "$@"; do
        text=${argument//$'\n'/ }
        [[ $(escape_line "$text") == "$text" ]] ||
            refuse "'$argument' has a control character, or is not UTF-8; remove it"
        [[ $text == "$argument" || ${0##*/} == ssh.sh ]] ||
            refuse "'$argument' has a line break, which no option or flag of training has; remove it"
    done
}

# Takes an option that every script has; fails if $1 is none. The script defines usage.
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
    local line name number=0
    [[ -f $CLUSTER ]] || refuse "$CLUSTER: there is no such file; copy launch/cluster.env and fill it in"
    while IFS= read -r line || [[ -n $line ]]; do
        number=$((number + 1)) line=${line%$'\r'}
        [[ $line =~ ^[[:space:]]*(#.*)?$ ]] && continue
        name=${line%%=*}
        [[ $line == *=* && $name =~ ^[A-Z_]+$ && " $SETTINGS " == *" $name "* ]] ||
            refuse "$CLUSTER, line $number: '${line:0:200}' is not NAME=VALUE with NAME one of ${SETTINGS// /, }"
        [[ $ORIGINS != *" $name="* ]] ||
            refuse "$CLUSTER, line $number: $name is set a second time; remove one of the two lines"
        printf -v "$name" '%s' "${line#*=}"
        ORIGINS+=" $name=$number "
    done <"$CLUSTER"
    take_preset
}

# origin NAME: prints the file of a setting, and the line in it.
origin() {
    local number=''
    if [[ $ORIGINS == *" $1="* ]]; then
        number=${ORIGINS##*" $1="}
        number=", line ${number%% *}"
    fi
    echo "$CLUSTER$number"
}

# The preset's machine, unless the file says the same itself; another one beside it is refused.
take_preset() {
    local kind runtime
    [[ -n $PRESET ]] || return 0
    case $PRESET in
        base-v[234]) kind=${PRESET#base-}-32 ;;
        large-v[234]) kind=${PRESET#large-}-128 ;;
        base-v5e) kind=v5litepod-16 ;;
        large-v5e) kind=v5litepod-64 ;;
        base-v5p) kind=v5p-32 ;;
        large-v5p) kind=v5p-128 ;;
        base-v6e) kind=v6e-16 ;;
        large-v6e) kind=v6e-64 ;;
        *) refuse "$(origin PRESET): PRESET is '$PRESET'; it must be base- or large- with v2, v3, v4, v5e, v5p or" \
            "v6e, such as base-v5e, or empty with ACCELERATOR_TYPE and RUNTIME_VERSION" ;;
    esac
    case $PRESET in
        *v5e) runtime=v2-alpha-tpuv5-lite ;;
        *v5p) runtime=v2-alpha-tpuv5 ;;
        *v6e) runtime=v2-alpha-tpuv6e ;;
        *) runtime=tpu-ubuntu2204-base ;;
    esac
    [[ ${ACCELERATOR_TYPE:-$kind} == "$kind" ]] ||
        refuse "$(origin ACCELERATOR_TYPE): ACCELERATOR_TYPE is '$ACCELERATOR_TYPE', but PRESET=$PRESET is $kind; clear one" \
            "of the two"
    [[ ${RUNTIME_VERSION:-$runtime} == "$runtime" ]] ||
        refuse "$(origin RUNTIME_VERSION): RUNTIME_VERSION is '$RUNTIME_VERSION', but PRESET=$PRESET runs $runtime; clear" \
            "one of the two"
    ACCELERATOR_TYPE=$kind RUNTIME_VERSION=$runtime
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
            ACCELERATOR_TYPE) form='(v|tpu)[0-9]+[a-z]*-[1-9][0-9]{0,4}' example=v5litepod-16 ;;
            RUNTIME_VERSION) form='[a-z][a-z0-9.-]*' example=v2-alpha-tpuv5-lite ;;
            SPOT | INTERNAL_IPS) form='true|false' example='true or false' ;;
            VALID_UNTIL) form=$DURATION example=6h ;;
            BUCKET) form="gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/$path)?" example=gs://my-bucket/bert ;;
            SERVICE_ACCOUNT)
                form='[a-z0-9][a-z0-9-]{0,62}@[a-z0-9.-]+\.gserviceaccount\.com'
                example=trainer@my-project.iam.gserviceaccount.com
                ;;
            NETWORK | SUBNETWORK) form='[a-z]([-a-z0-9]{0,61}[a-z0-9])?' example=default ;;
            COORDINATOR_PORT) form='[1-9][0-9]{3}|[1-5][0-9]{4}' example=8482 ;;
            LABEL) form='[a-z]([a-z0-9_-]{0,61}[a-z0-9])?' example=bert_jax ;;
            GKE_CLUSTER) form='[a-z]([-a-z0-9]{0,38}[a-z0-9])?' example=my-cluster ;;
            GKE_IMAGE)
                form='[a-z0-9][a-z0-9._/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?'
                example=us-docker.pkg.dev/my-project/my-images/bert_jax:1
                ;;
            GKE_SERVICE_ACCOUNT) form='[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?' example=trainer ;;
            REMOTE_DIR) form=$path example=bert_jax ;;
            REMOTE_PYTHON) form=$path example=.venv/bin/python ;;
        esac
        if [[ -z ${!name} && " $OPTIONAL " == *" $name "* ]]; then continue; fi
        [[ -n ${!name} ]] || refuse "$(origin "$name"): $name is empty; set it, such as $name=$example"
        [[ ${!name} =~ ^($form)$ ]] ||
            refuse "$(origin "$name"): $name is '${!name}', which is not of the form of $example"
        # Only the path settings can hold a slash; no folder above the one that is named is meant.
        [[ "/${!name}/" != */../* ]] ||
            refuse "$(origin "$name"): $name is '${!name}', and .. is not allowed in it; name the folder itself"
        # Neither the root of the workers' disks nor their home folder is ours to fill and to clear.
        [[ $name != REMOTE_* || ${!name} == *[!./]* ]] ||
            refuse "$(origin "$name"): $name is '${!name}', which is no folder of its own; set one, such as" \
                "$name=$example"
    done
}

# check_duration OPTION VALUE
check_duration() {
    [[ $2 =~ ^$DURATION$ ]] || refuse "$1=$2 is not a duration; try 90s, 30m, 6h or 2d"
}

check_gcloud() {
    local property
    command -v gcloud >/dev/null ||
        refuse "gcloud is not on PATH; install it (https://cloud.google.com/sdk/docs/install) and" \
            "run 'gcloud auth login', or print the command with --dry-run"
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

check_worker() {
    [[ $1 =~ ^(all|0|[1-9][0-9]{0,4})$ ]] ||
        refuse "--worker=$1 must be a worker's number, counted from 0, or all; try --worker=0"
}

# on_workers WORKER COMMAND: WORKER is a number or all. Their output is escaped line by line. gcloud writes
# the command into its log on this machine, and a worker's process list shows it: put no secret into it.
on_workers() {
    if $DRY_RUN; then
        at_terminal "$@"
    else
        { at_terminal "$@" 2>&1 >&3 3>&- | escape_lines >&2; } 3>&1 | escape_lines
    fi
}

# at_terminal WORKER COMMAND: the same, with nothing between the worker and the terminal; an empty COMMAND is a
# shell.
at_terminal() {
    local command=(gcloud compute tpus tpu-vm ssh "$TPU_NAME" "--zone=$ZONE" "--project=$PROJECT"
        "--worker=$1")
    if [[ -n $2 ]]; then command+=("--command=$2"); fi
    if [[ $INTERNAL_IPS == true ]]; then command+=(--internal-ip); fi
    run_or_print "${command[@]}"
}

# to_workers FILE NAME: copies it into each worker's home folder.
to_workers() {
    local command=(gcloud compute tpus tpu-vm scp "$1" "$TPU_NAME:$2" "--zone=$ZONE"
        "--project=$PROJECT" --worker=all)
    if [[ $INTERNAL_IPS == true ]]; then command+=(--internal-ip); fi
    run_or_print "${command[@]}"
}

# The arguments of the script that sources this.
check_arguments "$@"
