#!/usr/bin/env bash
# Request the slice that cluster.env describes from Google Cloud.
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" create "$@"
