#!/usr/bin/env bash
# Show or follow the log of training, or its copies in the bucket.
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" logs "$@"
