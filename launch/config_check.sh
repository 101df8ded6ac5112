# shellcheck shell=bash
# Sourced after cluster.sh by what starts training: the config is resolved here before anything is asked for.

# check_config REVISION FLAG ...: refuses, with the sentence of bert_jax.train, the flags that it would refuse on
# the workers. REVISION is what is sent; empty: what lies here. The store is the workers', and is not opened.
check_config() {
    local revision=$1 root=${LAUNCH%/launch} flag path='' folder
    shift
    for flag in "$@"; do
        if [[ $flag == --config=* ]]; then path=${flag#--config=} path=${path%%:*}; fi
    done
    if [[ -z $path ]]; then return 0; fi
    if [[ $path == /* && ! -f $path ]]; then
        escape_line "note: $path is not on this machine, so that it is not resolved before the workers do" >&2
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
            refuse "commit $revision of $root could not be unpacked, to look at $path in it"
        resolve_config "$folder" "$path" "$@"
    )
}

# resolve_config FOLDER PATH FLAG ...: in FOLDER, by the first Python that has bert_jax and what it needs.
resolve_config() {
    local folder=$1 path=$2 candidate words status candidates
    shift 2
    candidates=("${LAUNCH%/launch}/.venv/bin/python" python3 python)
    if [[ -n ${BERT_JAX_PYTHON-} ]]; then candidates=("$BERT_JAX_PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        candidate=$(command -v "$candidate") || continue
        if [[ $candidate == */* && $candidate != /* ]]; then candidate=$PWD/$candidate; fi
        status=0
        words=$(cd "$folder" && JAX_PLATFORMS=cpu "$candidate" -m bert_jax.train "$@" --config.data.store= \
            --print_config 2>&1 >/dev/null </dev/null) || status=$?
        if ((status == 0)); then return 0; fi
        # A Python without jax fails with 1; 2 says that the flags are wrong.
        if ((status == 2)) && [[ $words == *'error: '* ]]; then
            words=${words##*'error: '}
            refuse "${words%%$'\n'*}"
        fi
    done
    [[ $path == /* || -f $folder/$path ]] || refuse "--config=$path: there is no such file in ${LAUNCH%/launch}"
    escape_line "note: no Python here has bert_jax, so that $path is not resolved before the workers do" >&2
}
