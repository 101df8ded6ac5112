"""A worker's commands for tests: python3 with pip, and the uv that pip brings; neither installs.

They write what they were given to calls.log in the worker's home folder, HOME.
"""

import os
import pathlib
import subprocess

from tests.launch.scripts import write_command

# The Python of the environment that the stand-in for uv makes: it says what it is asked.
_PYTHON = """\
#!/usr/bin/env bash
case "$*" in
    --version) echo Python 3.12.0 ;;
    *"import jax"*) echo jax 0 ;;
    *--print_config*) exit "${TRAIN_EXIT-0}" ;;
    *bert_jax.train*)
        echo "$HOSTNAME trains: $*"
        [[ -z ${TRAINER-} ]] || exec "$TRAINER" "$@"
        exit "${TRAIN_EXIT-0}"
        ;;
    "-c "*) ;;
esac
"""
_UV = f"""\
#!/usr/bin/env bash
echo "uv $*" >>"$HOME/calls.log"
[[ $1 != venv ]] || {{
    mkdir -p "${{!#}}/bin"
    touch "${{!#}}/pyvenv.cfg"
    cat >"${{!#}}/bin/python" <<'PYTHON'
{_PYTHON}PYTHON
    chmod +x "${{!#}}/bin/python"
}}
[[ $1 != --version ]] || echo "uv 0.0.0"
[[ "$*" != *"${{UV_FAILS-nothing}}"* ]]
"""


def make_tools(folder: pathlib.Path) -> str:
    """Write the commands; gives a PATH on which they come first."""
    write_command(
        folder / "python3",
        'echo "python3 $*" >>"$HOME/calls.log"',
        "[[ -z ${NO_PIP-} ]] || exit 1",
        '[[ "$*" == *--version ]] || {',
        "    mkdir -p .uv/bin",
        f"    cat >.uv/bin/uv <<'UV'\n{_UV}UV",
        "    chmod +x .uv/bin/uv",
        "}",
    )
    return f"{folder}:{os.environ['PATH']}"


def run_on(
    home: pathlib.Path, command: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as ssh does on a worker: by bash, in its home folder."""
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=home,
        env=os.environ | {"HOME": str(home), "HOSTNAME": home.name} | environment,
        timeout=60,
    )
