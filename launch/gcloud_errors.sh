# shellcheck shell=bash
# Sourced: which failures of gcloud pass by themselves, and which do not.

# Whether gcloud says that there is no such thing.
is_absent() { [[ $1 == *NOT_FOUND* || $1 == *'HTTPError 404'* ]]; }

# Whether asking again cannot help: no permission, no login, a wrong name or zone, no quota for so many
# chips. Too many questions a minute, which also is called quota, passes; so do all that are not known.
is_permanent() {
    case $1 in
        *'requests per minute'* | *'rate limit'* | *rateLimitExceeded*) return 1 ;;
        *PERMISSION_DENIED* | *'does not have permission'* | *'HTTPError 403'*) ;;
        *UNAUTHENTICATED* | *'gcloud auth login'* | *'HTTPError 401'*) ;;
        *INVALID_ARGUMENT* | *'unrecognized arguments'* | *'Invalid value'*) ;;
        *QUOTA_EXCEEDED* | *'Quota limit'* | *[Qq]'uota exceeded'*) ;;
        *) is_absent "$1" ;;
    esac
}

# What gcloud has to say, in one line: its ERROR, else its last line.
gcloud_words() {
    local line words=''
    while IFS= read -r line; do
        if [[ $line == 'ERROR: '* ]]; then words=${line#ERROR: } && break; fi
        if [[ -n $line ]]; then words=$line; fi
    done <<<"$1"
    echo "${words:-gcloud failed without a word}"
}
