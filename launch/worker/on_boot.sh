#!/usr/bin/env bash
# Startup script of each machine of a group (ROAD=compute_engine), run by root at every boot: fetches commit,
# packages and flags from the bucket, trains, and writes what it does to FOLDER/records every RECORD_SECS.
# Training is started again after every exit code but 0, 2 and 3, also on a machine with a new disk.
set -uo pipefail

readonly RECORD_SECS=${RECORD_SECS-60} HOME_DIR=${HOME_DIR-/var/lib/bert_jax} LOG=logs/train.log
export HOME=$HOME_DIR

metadata() {
    curl --fail --silent --retry 5 --header 'Metadata-Flavor: Google' \
        "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

# record STATUS, a line of `on_worker_train.sh --status`; training goes on if the bucket does not answer.
record() {
    printf 'worker %s %s starts %s time %s\n' "$HOSTNAME" "$1" "$starts" "$(date +%s)" |
        timeout 120 gcloud storage cp - "$FOLDER/records/$HOSTNAME" >/dev/null 2>&1
}

# Download job.txt and set lines: commit, Python, wheelhouse, port, folder of logs, flags.
fetch() {
    mkdir -p "$HOME" && cd "$HOME" || return
    gcloud storage cp "$FOLDER/code.tar.gz" "$FOLDER/job.txt" . || return
    mapfile -t lines <job.txt
    tar -xzOf code.tar.gz launch/worker/on_worker_setup.sh >bert_jax-setup.sh || return
    python3 -m pip --version >/dev/null 2>&1 || { apt-get update && apt-get install --yes python3-pip; }
    bash bert_jax-setup.sh code.tar.gz "${lines[0]}" bert_jax "${lines[1]}" ${lines[2]:+"${lines[2]}"}
}

train() {
    cd "$HOME/bert_jax" || return
    if [[ -n ${lines[3]} ]]; then export JAX_COORDINATOR_PORT=${lines[3]}; fi
    bash launch/worker/on_worker_train.sh --clear "$LOG" || return
    bash launch/worker/on_worker_train.sh "${lines[1]}" "$LOG" "${lines[4]}" "${lines[@]:5}" || return
    while status=$(bash launch/worker/on_worker_train.sh --status "$LOG") && [[ $status == running* ]]; do
        record "$status"
        sleep "$RECORD_SECS"
    done
}

FOLDER=$(metadata bert-jax-folder) || exit
former=$(gcloud storage cat "$FOLDER/records/$HOSTNAME" 2>/dev/null) || former=''
starts=0
if [[ $former =~ \ starts\ ([0-9]{1,6})\ time ]]; then starts=$((10#${BASH_REMATCH[1]})); fi
while [[ ! $former =~ ' ended '[023]' ' ]]; do
    starts=$((starts + 1)) status='ended 1 -'
    record 'not set up'
    if ! { fetch && train; }; then sleep "$RECORD_SECS"; fi
    former=" $status "
    until record "$status"; do sleep "$RECORD_SECS"; done
done
