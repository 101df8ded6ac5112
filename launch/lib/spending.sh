# shellcheck shell=bash
# Sourced after cluster.sh: the cost of the TPU VM, from its chips, a price and the time that it existed.

PRICES=${LAUNCH%/launch}/bert_jax/planning/prices.json
# Dollars per chip-hour; empty: prices.json's.
PRICE=''

# Prints the seconds since 1970 of a time of Google's APIs, 2026-11-22T03:00:00.123Z; date differs by system.
epoch_of() {
    local year month days
    [[ $1 =~ ^([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?Z$ ]] || return 1
    # Years that begin in March have the leap day at their end.
    month=$(((10#${BASH_REMATCH[2]} + 9) % 12))
    year=$((10#${BASH_REMATCH[1]} - month / 10))
    days=$((365 * year + year / 4 - year / 100 + year / 400 + (306 * month + 5) / 10))
    days=$((days + 10#${BASH_REMATCH[3]} - 1 - 719468))
    echo $((((days * 24 + 10#${BASH_REMATCH[4]}) * 60 + 10#${BASH_REMATCH[5]}) * 60 + 10#${BASH_REMATCH[6]}))
}

# Prints the chips of ACCELERATOR_TYPE; nothing for an unknown kind.
chips() {
    case $ACCELERATOR_TYPE in
        v5litepod-* | v6e-*) echo "${ACCELERATOR_TYPE##*-}" ;;
        v[234]-* | v5p-*) echo $((${ACCELERATOR_TYPE##*-} / 2)) ;;
    esac
}

# Prints the dollars per chip-hour; nothing if unknown.
chip_hour_price() {
    local kind=${ACCELERATOR_TYPE%-*}
    if [[ -n $PRICE ]]; then
        echo "$PRICE"
    elif [[ -f $PRICES ]]; then
        sed -n 's/^ *{"chip": "'"${kind/litepod/e}"'", "usd_on_demand": \([0-9.]*\),.*$/\1/p' "$PRICES"
    fi
}

# money SECS: prints the cost of so many seconds. A spot TPU VM costs less than on demand, by a price that
# changes every month.
money() {
    local chips price
    chips=$(chips)
    price=$(chip_hour_price)
    if [[ -z $chips || -z $price ]]; then
        echo 'price unknown'
        return
    fi
    if [[ $SPOT == true && -z $PRICE ]]; then printf 'at most '; fi
    awk -v chips="$chips" -v price="$price" -v secs="$1" \
        'BEGIN { printf "$%.2f\n", chips * price * secs / 3600 }'
}
