#!/usr/bin/env bash
# usage: launch/hosts.sh HOST,HOST,... FOLDER --config=FILE --workdir=WORKDIR \
#            [TRAIN_FLAG ...]
#        launch/hosts.sh --stop HOST,HOST,... FOLDER
# Train on hosts that ssh reaches without a password, one process per host.
# FOLDER, absolute or relative to the home folder, has a clone with .venv on
# every host; PYTHON names another Python there. Training outlives the
# connections. It is restarted after every exit code but 0, 2, 3, 126 and 127
# (no such command), until five starts in a row leave the newest checkpoint in
# WORKDIR as it was. Ctrl-C stops all processes, which save first.

set -uo pipefail

readonly MAX_TRIES=5 PORT=8482 POLL_SECS=${POLL_SECS-20} PAUSE_SECS=${PAUSE_SECS-60}
# Time for the other processes to end after one has failed; longer than config.hosts.heartbeat_secs.
readonly GRACE_SECS=${GRACE_SECS-120}
# Exit codes with which another start would end too. A process ends with 0 only after all have agreed that the
# run is complete.
readonly FINAL='[023]|126|127'
# Whatever ~/.ssh/config says: no terminal, whose lines end in \r, and no connection that stays, as an older ssh
# then keeps stderr open, and with it the pipe.
readonly SSH=(timeout 300 ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=20
    -o RequestTTY=no -o ControlPersist=no)
readonly HOST='([[:alnum:]_][[:alnum:]_.-]*@)?[[:alnum:]][[:alnum:]_.-]*'

refuse() {
    echo "error: $*" >&2
    exit 2
}

# Run a command in FOLDER on host number $1 and show its last line. The words go through stdin, where Bash
# alone reads them, whatever the host's login shell is.
on_host() {
    { printf 'cd -- %q && exec' "$folder" && printf ' %q' "${@:2}" && echo; } |
        "${SSH[@]}" -- "${hosts[$1]}" bash 2>&1 | tail -n 1 | LC_ALL=C tr -c '[:print:]\n' '?' | cut -c -500
}

# Run an action of on_worker_train.sh on all hosts at once and set answers. Where one fails, set
# failed to the host and its words, and return its code.
on_all() {
    local action=$1 i log words pids=() code=0
    shift
    for i in "${!hosts[@]}"; do
        log=logs/${hosts[i]#*@}.log
        words=("$action" "$log")
        if [[ $action == start ]]; then words=("$python" "$log" '' "$@" "--process_id=$i"); fi
        on_host "$i" bash launch/worker/on_worker_train.sh "${words[@]}" >"$said/$i" &
        pids+=($!)
    done
    for i in "${!hosts[@]}"; do
        wait "${pids[i]}" || code=$? failed="${hosts[i]}: $(<"$said/$i")"
        answers[i]=$(<"$said/$i")
    done
    return "$code"
}

# Wait for the end of the run and set code to a final one, else to the highest.
wait_for_end() {
    local status codes over_at=0
    while sleep "$POLL_SECS"; do
        on_all --status
        status=$(printf '%s\n' "${answers[@]}")
        codes=$(sed -nE 's/^ended ([0-9]{1,3}) .*/\1/p' <<<"$status" | sort -rn)
        code=$(grep -xE "$FINAL" <<<"$codes" || echo "$codes")
        code=${code%%$'\n'*}
        # If no host answers, this machine itself may have no network.
        [[ -n $code ]] || continue
        if ((over_at == 0)); then over_at=$((SECONDS + GRACE_SECS)); fi
        if ! grep -q '^running' <<<"$status" || ((SECONDS >= over_at)); then return; fi
    done
}

stop() {
    # A start that a signal interrupted may still be on its way to a host.
    wait
    on_all --stop || echo "not stopped: $failed" >&2
}

newest_step() {
    on_host 0 "$python" -m launch.worker.newest_step "$workdir"
}

if [[ ${1---help} == --help ]]; then
    sed -n '/^# usage/,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
only_stop='' workdir='' python=${PYTHON:-.venv/bin/python} answers=()
if [[ $1 == --stop ]]; then only_stop=true && shift; fi
names=${1-} folder=${2-}
[[ $names =~ ^$HOST(,$HOST)*$ ]] || refuse "${names@Q} is no list of hosts; give names as a,b or me@a,me@b"
IFS=, read -ra hosts <<<"$names"
[[ -z $(printf '%s\n' "${hosts[@]#*@}" | sort | uniq -d) ]] || refuse "$names has a host twice; give each once"
[[ -n $folder && $folder != -* ]] || refuse "${folder@Q} is no folder of the hosts; give it after their names"
shift 2
said=$(mktemp -d 2>&1) || refuse "no folder for the hosts' answers ($said); make room there, or set TMPDIR"
trap 'rm -rf "$said"' EXIT
if [[ -n $only_stop ]]; then
    on_all --stop || refuse "not stopped: $failed"
    printf '%s\n' "${answers[@]}"
    exit
fi
for flag in "$@"; do
    case $flag in
        --workdir=*) workdir=${flag#*=} ;;
        --process_id* | --num_processes*) refuse "$flag follows from the hosts; leave it out" ;;
    esac
done
[[ -n $workdir ]] || refuse "--workdir is '', no folder that all hosts see; give --workdir=WORKDIR"
# Of two addresses the last one counts.
set -- "--coordinator_address=${hosts[0]#*@}:$PORT" "$@" --multihost "--num_processes=${#hosts[@]}"

former=$(newest_step)
[[ $former =~ ^-?[0-9]+$ ]] || refuse "${hosts[0]} cannot list the checkpoints of $workdir: $former"
on_all --clear || refuse "$failed"
trap 'stop; exit 130' INT
trap 'stop; exit 143' TERM
tries=0
while true; do
    refusals=0
    until on_all start "$@"; do
        code=$?
        stop
        # Failures of ssh (255) or by its time limit (124) may pass; a host may refuse once, after a start that was cut off.
        [[ $code =~ ^(124|255)$ ]] || ((++refusals < 2)) || refuse "not started: $failed"
        echo "not started, tried again in $PAUSE_SECS s: $failed"
        sleep "$PAUSE_SECS"
    done
    echo "training from checkpoint $former; output in logs/ of $folder on each host"
    wait_for_end
    stop
    if [[ $code =~ ^($FINAL)$ ]]; then echo "ended with exit code $code" && exit "$code"; fi
    newest=$(newest_step)
    [[ $newest =~ ^-?[0-9]+$ ]] || newest=$former
    tries=$((tries + 1))
    if [[ $newest != "$former" ]]; then tries=0 former=$newest; fi
    echo "exit code $code, newest checkpoint $newest, $tries starts in a row without a newer one"
    ((tries < MAX_TRIES)) || exit "$code"
    sleep "$PAUSE_SECS"
done
