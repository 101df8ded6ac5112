#!/usr/bin/env bash
# Start training on every worker, or stop it; it runs without this machine.
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" train "$@"
