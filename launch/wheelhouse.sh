#!/usr/bin/env bash
# Copy to the bucket what setup.sh --wheelhouse installs on workers without internet.
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" wheelhouse "$@"
