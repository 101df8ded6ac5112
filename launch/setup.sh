#!/usr/bin/env bash
# Install a commit of bert_jax, Python 3.12 and the pinned packages on every worker.
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" setup "$@"
