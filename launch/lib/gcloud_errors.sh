# shellcheck shell=bash
# Sourced: classifies failures of gcloud as transient or permanent.

# Whether gcloud found no such resource.
is_absent() { [[ $1 == *NOT_FOUND* || $1 == *'HTTPError 404'* ]]; }

# Whether a retry cannot help: no permission, no login, a wrong name or zone, no quota for so many chips.
# Too many requests a minute, which is also called quota, is transient; so is every unknown error.
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

# Prints gcloud's error in one line: its ERROR, else its last line.
gcloud_words() {
    local line words=''
    while IFS= read -r line; do
        if [[ $line == 'ERROR: '* ]]; then words=${line#ERROR: } && break; fi
        if [[ -n $line ]]; then words=$line; fi
    done <<<"$1"
    echo "${words:-gcloud failed without a message}"
}
