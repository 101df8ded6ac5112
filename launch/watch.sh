#!/usr/bin/env bash
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" watch "$@"
