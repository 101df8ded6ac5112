#!/usr/bin/env bash
# Open a shell on a worker, or run a command on one or all of them.
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" ssh "$@"
