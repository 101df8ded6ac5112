#!/usr/bin/env bash
# Run the function of launch/cloud/commands.py that has the name of the link to this file, with the first Python
# 3.11 or later of: LAUNCH_PYTHON, the clone's .venv, PATH.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
for python in "${LAUNCH_PYTHON-}" "$here/../.venv/bin/python" python3 python3.14 python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        PYTHONSAFEPATH='' exec "$python" -X utf8 -B "$here/main.py" "$(basename "${BASH_SOURCE[0]}" .sh)" "$@"
    fi
done
echo "error: no Python 3.11 or later is on PATH, which the scripts of launch/ need; install one" >&2
exit 2
