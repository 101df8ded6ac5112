# shellcheck shell=bash
# Sourced after cluster.sh by what starts training: resolves the config here before anything is requested.

# check_config REVISION FLAG ...: refuses, with the message of bert_jax.train, the flags that it would refuse on
# the workers. REVISION is what is sent; empty: the files here.
check_config() {
    local revision=$1 root=${LAUNCH%/launch} flag path='' folder
    shift
    for flag in "$@"; do
        if [[ $flag == --config=* ]]; then path=${flag#--config=} path=${path%%:*}; fi
    done
    if [[ -z $path ]]; then return 0; fi
    if [[ $path == /* && ! -f $path ]]; then
        escape_line "note: $path is not on this machine, so only the workers resolve it" >&2
        return 0
    fi
    if [[ -z $revision ]]; then
        # In a wheel the package itself would hide other packages.
        if [[ ! -f $root/bert_jax/train.py ]]; then root=$PWD; fi
        resolve_config "$root" "$path" "$@"
        return
    fi
    folder=$(mktemp -d)
    (
        trap 'rm -rf "$folder"' EXIT
        git -C "$root" archive "$revision" | tar -xf - -C "$folder" ||
            refuse "commit $revision of $root could not be unpacked to check $path in it"
        resolve_config "$folder" "$path" "$@"
    )
}

# resolve_config FOLDER PATH FLAG ...: in FOLDER, by the first Python that has bert_jax and what it needs.
resolve_config() {
    local folder=$1 path=$2 candidate candidates status
    shift 2
    candidates=("${LAUNCH%/launch}/.venv/bin/python" python3 python)
    if [[ -n ${BERT_JAX_PYTHON-} ]]; then candidates=("$BERT_JAX_PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        candidate=$(command -v "$candidate") || continue
        if [[ $candidate == */* && $candidate != /* ]]; then candidate=$PWD/$candidate; fi
        status=0
        print_config "$folder" "$candidate" "$@" || status=$?
        # A folder may be a store on the workers alone. A Python without jax fails with 1; 2 means wrong flags.
        if ((status == 2)); then
            status=0
            print_config "$folder" "$candidate" "$@" --config.data.store= || status=$?
        fi
        if ((status == 0)); then
            check_data_cache
            return
        fi
        if ((status == 2)) && [[ $RESOLVED == *'error: '* ]]; then
            RESOLVED=${RESOLVED##*'error: '}
            refuse "${RESOLVED%%$'\n'*}"
        fi
    done
    [[ $path == /* || -f $folder/$path ]] || refuse "--config=$path: there is no such file in ${LAUNCH%/launch}"
    escape_line "note: no Python here has bert_jax, so only the workers resolve $path" >&2
}

# print_config FOLDER PYTHON FLAG ...: sets RESOLVED to the config, or to the errors. A store on gs:// is not opened.
print_config() {
    RESOLVED=$(cd "$1" && JAX_PLATFORMS=cpu "$2" -m bert_jax.train "${@:3}" --print_config 2>&1 </dev/null)
}

# The workers would refuse it only once they are set up.
check_data_cache() {
    local newline=$'\n'
    [[ $RESOLVED =~ ${newline}"  store: "\'?(gs://[^$newline\']*) ]] || return 0
    local store=${BASH_REMATCH[1]}
    [[ $RESOLVED != *"$newline  data_cache: ''"* ]] ||
        refuse "config.data.store is $store, which each host copies once, but config.data.data_cache is empty; add" \
            "--config.data.data_cache=FOLDER, a folder on each worker's own disk, such as /tmp/stores"
}
