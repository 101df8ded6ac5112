# shellcheck shell=bash
# Sourced after cluster.sh: GKE's names for the slice of cluster.env, and what its two scripts share.
# shellcheck disable=SC2034  # the variables are theirs
# shellcheck source-path=SCRIPTDIR source=config_check.sh
source "$LAUNCH/lib/config_check.sh"

# Values of GKE's two node labels and the hosts of the slice. Its machines have four chips a host
# (ct5lp-hightpu-4t and its like); xpk 1.16.0 has the same table.
ACCELERATOR='' TOPOLOGY='' HOSTS=''
readonly CHIPS_A_HOST=4

# The flags of the training, and how often the job may restart.
flags=() max_restarts=100

read_flags() {
    while (($#)); do
        case $1 in
            --max_restarts=*) max_restarts=${1#*=} ;;
            *) take_option "$1" || flags+=("$1") ;;
        esac
        shift
    done
    [[ $max_restarts =~ ^(0|[1-9][0-9]{0,5})$ ]] ||
        refuse "--max_restarts=$max_restarts is not a whole number from 0; try --max_restarts=100"
}

find_machine() {
    local size=${ACCELERATOR_TYPE#*-} chips
    case $ACCELERATOR_TYPE in
        v5litepod-*) ACCELERATOR=tpu-v5-lite-podslice chips=$size ;;
        v6e-*) ACCELERATOR=tpu-v6e-slice chips=$size ;;
        v4-*) ACCELERATOR=tpu-v4-podslice chips=$((size / 2)) ;;
        v5p-*) ACCELERATOR=tpu-v5p-slice chips=$((size / 2)) ;;
        *) refuse_machine ;;
    esac
    case $ACCELERATOR.$chips in
        *lite*.16 | *v6e*.16) TOPOLOGY=4x4 ;;
        *lite*.32 | *v6e*.32) TOPOLOGY=4x8 ;;
        *lite*.64 | *v6e*.64) TOPOLOGY=8x8 ;;
        *lite*.128 | *v6e*.128) TOPOLOGY=8x16 ;;
        *lite*.256 | *v6e*.256) TOPOLOGY=16x16 ;;
        *v4*.16 | *v5p*.16) TOPOLOGY=2x2x4 ;;
        *v4*.32 | *v5p*.32) TOPOLOGY=2x4x4 ;;
        *v4*.64 | *v5p*.64) TOPOLOGY=4x4x4 ;;
        *v4*.128 | *v5p*.128) TOPOLOGY=4x4x8 ;;
        *) refuse_machine ;;
    esac
    HOSTS=$((chips / CHIPS_A_HOST))
}

refuse_machine() {
    refuse "$CLUSTER: ACCELERATOR_TYPE is '$ACCELERATOR_TYPE', for which launch/gke knows no name of GKE; use" \
        "v5litepod-16 to 256, v6e-16 to 256, v4-32 to 256 or v5p-32 to 256"
}

# A pod's disk is deleted with the pod, and its name must fit after the workload's.
check_workload() {
    local argument found=false
    [[ ${#TPU_NAME} -le 40 ]] ||
        refuse "$CLUSTER: TPU_NAME is '$TPU_NAME', and the names of pods leave room for 40 characters; shorten it"
    for argument in "$@"; do
        if [[ $argument == --workdir=gs://?* ]]; then found=true; fi
    done
    [[ " $*" == *' --config='?* ]] ||
        refuse "--config=FILE is missing, such as --config=configs/base.py"
    $found || refuse "--workdir=gs://BUCKET/FOLDER is missing: a pod's own disk is deleted with the pod"
}
