#!/usr/bin/env bash
# Train a config from start to end on a slice that is created for it and deleted afterwards.
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" pod "$@"
