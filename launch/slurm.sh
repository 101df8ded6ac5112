#!/usr/bin/env bash
# usage: sbatch --nodes=N --ntasks-per-node=GPUS --gpus-per-node=GPUS \
#            [OPTION ...] launch/slurm.sh --config=FILE --workdir=WORKDIR \
#            [TRAIN_FLAG ...]
# Train as a Slurm job, one process per GPU, submitted from a clone with .venv
# that all nodes see; PYTHON names another Python. The job stops and saves
# before its time limit, and is requeued after every exit code but 0, 2 and 3,
# until five starts in a row leave the newest checkpoint in WORKDIR as it was.

#SBATCH --job-name=bert_jax
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

readonly MAX_TRIES=5

refuse() {
    echo "error: $*" >&2
    exit 2
}

newest_step() {
    PYTHONSAFEPATH='' "$python" -m launch.worker.newest_step "$workdir" || echo unknown
}

if [[ ${1-} == --help ]]; then
    sed -n '/^# usage/,/^$/s/^# \{0,1\}//p' "$0"
    exit
fi
job=${SLURM_JOB_ID-} restarts=${SLURM_RESTART_COUNT:-0} python=${PYTHON:-.venv/bin/python} workdir=''
for flag in "$@"; do
    if [[ $flag == --workdir=* ]]; then workdir=${flag#*=}; fi
done
[[ $job =~ ^[0-9]+$ ]] ||
    refuse "SLURM_JOB_ID is '$job', not a number as sbatch sets it; submit with sbatch launch/slurm.sh"
[[ -n $workdir ]] || refuse "--workdir is '', no folder that all nodes see; give --workdir=WORKDIR"
[[ -e launch/worker/newest_step.py ]] || refuse "$PWD is no clone of bert_jax; submit from a clone"
command -v "$python" >/dev/null || refuse "PYTHON is '$python', no program here; run make setup, or set PYTHON"

before=$(newest_step)
# The first start of a job ignores what an older job of the same number has left.
tries_file=slurm-$job.tries tries=0 former=''
if [[ $restarts != 0 ]]; then read -r tries former 2>/dev/null <"$tries_file" || tries=0; fi
# A start that Slurm ended, as a preemption does, wrote no count but may have saved.
[[ $tries =~ ^[0-9]$ && ($before == "$former" || $before == unknown) ]] || tries=0

# srun, as Slurm signals the steps of a job and not this shell. After a process fails or dies, the others end by
# themselves within a minute; if srun killed them, their 137 would hide the first exit code, as srun returns the
# highest. A code that is hidden nevertheless does no harm: after 0, 2 or 3 the next start ends with the same.
# Since 22.05 srun does not take --cpus-per-task from sbatch.
code=0
srun --kill-on-bad-exit=0 --wait=0 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    "$python" -u -m bert_jax.train "$@" --multihost || code=$?

case $code in
    0 | 2 | 3) exit "$code" ;;
esac
tries=$((tries + 1)) after=$(newest_step)
if [[ $after == unknown ]]; then after=$before; fi
if [[ $after != "$before" ]]; then tries=0; fi
if ((tries >= MAX_TRIES)); then
    echo "gave up: exit code $code, and $tries starts in a row reached no newer checkpoint than $after" >&2
    exit "$code"
fi
if ! echo "$tries $after" >"$tries_file"; then
    echo "error: $PWD/$tries_file, which counts the starts, cannot be written; make room, then submit again" >&2
    exit "$code"
fi
echo "exit code $code, newest checkpoint $after: requeued"
scontrol requeue "$job" || echo "error: Slurm does not requeue job $job; submit it again to resume" >&2
exit "$code"
