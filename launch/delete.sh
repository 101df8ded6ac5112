#!/usr/bin/env bash
# Delete the slice that create.sh or pod.sh requested, with everything on it.
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" delete "$@"
