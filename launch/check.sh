#!/usr/bin/env bash
# Say what a run lacks, before anything costs money.
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" check "$@"
