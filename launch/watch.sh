#!/usr/bin/env bash
# Keep a training run going until it ends: recreate a lost slice, restart failed training.
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" watch "$@"
