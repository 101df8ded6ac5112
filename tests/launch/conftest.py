"""Share fixtures: cluster.env, a clone, commands run in this process, a stand-in for gcloud."""

import collections
import functools
import os
import pathlib
import re
import shlex
import shutil
import sys

import pytest

from launch.cloud import commands, job, run, watch
from tests.launch.scripts import make_clone, write_cluster, write_command
from tests.launch.simulated_cloud import HOUR, SAVE_SECS, Cloud

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


@pytest.fixture(autouse=True)
def quick_python(monkeypatch):
    """Stand in for the Python that resolves the config, which takes seconds; it accepts all."""
    monkeypatch.setenv("BERT_JAX_PYTHON", "true")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Return a folder for commands, the first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'my tools'}:{os.environ['PATH']}")
    return tmp_path / "my tools"


@pytest.fixture
def cluster(tmp_path):
    """Return a function that writes a complete cluster.env, changed as it is told."""
    return lambda **changed: write_cluster(tmp_path / "cluster.env", **changed)


@pytest.fixture(scope="session")
def one_clone(tmp_path_factory):
    return make_clone(tmp_path_factory.mktemp("clone") / "clone")


@pytest.fixture
def clone(one_clone, monkeypatch, tmp_path):
    """Return a small clone of bert_jax, whose commits are sent; a test may change it."""
    folder = shutil.copytree(one_clone, tmp_path / "clone")
    for module in (job, commands):
        monkeypatch.setattr(module, "ROOT", folder)
    return folder


@pytest.fixture
def call(capsys, clone):
    """Return a function that runs a command of launch/ here: exit code, stdout, stderr."""

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = commands.COMMANDS[name](arguments)
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def refused(call):
    """Return a function that runs a command, which must refuse in one sentence."""

    def run(name: str, *arguments: str) -> str:
        code, out, error = call(name, *arguments)
        assert (code, out, error[:7], error.count("\n")) == (2, "", "error: ", 1), error
        assert not set(error) & set("\x1b\u202e\r\x9b\x07")
        return error

    return run


def list_commands() -> list[list[str]]:
    """Return the words of each command in the --dry-run output; gcloud's check accepts them."""
    lines = (GOLDEN / "launch_dry_runs.txt").read_text().splitlines()
    return [shlex.split(line) for line in lines if line.startswith(("gcloud ", "kubectl "))]


@functools.cache
def read_flags() -> dict[str, set[str]]:
    """Return, by command, the flags in that output."""
    flags = collections.defaultdict(set)
    for name, found in map(split_flags, list_commands()):
        flags[name] |= found
    return flags


def split_flags(words: list[str]) -> tuple[str, set[str]]:
    names = [word for word in words if not re.search(r"^-|[/:=' <]|^my-|^[A-Z]", word)]
    return " ".join(names), {w.partition("=")[0] for w in words if w.startswith("--")}


@pytest.fixture
def cloud(tools, monkeypatch):
    """Simulate a Google Cloud that grants everything at once, for commands in this process.

    on_sleep: what passes the time while a command sleeps.
    """
    cloud = Cloud(0, "queued")
    cloud.on_sleep = lambda secs: cloud.sleep(HOUR)
    cloud.trouble, cloud.grants_from, cloud.final_code, cloud.calls = 0, cloud.now, 0, []
    cloud.length = 2 * SAVE_SECS

    def ask(command: run.Command) -> run.Answer:
        cloud.calls.append(" ".join(command.words))
        name, flags = split_flags(command.words)
        assert command.words[0] == "git" or flags - {"--context"} <= read_flags()[name], name
        return cloud.ask(command)

    def show(command: run.Command) -> int:
        said = ask(command)
        print(said.out, end="")
        print(said.err, end="", file=sys.stderr)
        return said.code

    monkeypatch.setattr(run, "_run", show)
    for module in (run, commands):
        monkeypatch.setattr(module, "ask", ask)
    for module in (watch, commands):
        monkeypatch.setattr(module, "time", cloud.clock(lambda secs: cloud.on_sleep(secs)))
    write_command(tools / "gcloud")
    return cloud


# gs:// is a folder; what is copied from stdin is kept in `said`, the calls in `calls`.
GCLOUD = """\
echo "$*" >>"$CLOUD/calls"
find() { if [[ $1 == gs://* ]]; then echo "$CLOUD/${1#gs://}"; else echo "$1"; fi; }
words=(); for word; do [[ $word == --* ]] || words+=("$word"); done
set -- "${words[@]}"
to=$(find "${!#}")
case "$1 $2" in
    "auth list") echo me ;;
    "storage cat") cat -- "$(find "$3")" ;;
    "storage rsync")
        [[ -d $(find "$3") ]] || { echo "$3 is not there" >&2; exit 1; }
        mkdir -p "$to"; cp -r "$(find "$3")/." "$to" ;;
    "storage cp")
        mkdir -p "$(dirname "$to")"
        if [[ $3 == - && -s $CLOUD/down ]]; then sed -i 1d "$CLOUD/down"; exit 1; fi
        if [[ $3 == - ]]; then tee -a "$CLOUD/said" >"$to"; exit; fi
        for word in "${@:3:$#-3}"; do cp "$(find "$word")" "$to"; done ;;
esac
"""


@pytest.fixture
def bucket(tools, tmp_path, monkeypatch):
    """Return a folder that the stand-in for gcloud on PATH serves as gs://."""
    write_command(tools / "gcloud", GCLOUD)
    monkeypatch.setenv("CLOUD", str(tmp_path / "cloud"))
    (tmp_path / "cloud").mkdir()
    return tmp_path / "cloud"


# A worker's python3, whose pip brings REAL_UV or a stand-in, which makes a Python that prints its
# arguments or is TRAINER. A wheelhouse has them as well. HOME has the calls of the first two.
_WORKER = {
    "python3": """\
echo "python3 $*" >>"$HOME/calls.log"
[[ -z ${NO_PIP-} ]] || exit 1
for word; do
    case $word in
        --dest=*) mkdir -p "${word#*=}" && touch "${word#*=}/a-1-py3-none-any.whl" ;;
        --target=*)
            mkdir -p "${word#*=}/bin"
            ln -sf "${REAL_UV-${0%/*}/uv}" "${word#*=}/bin/uv" ;;
    esac
done
""",
    "uv": """\
echo "uv $*" >>"$HOME/calls.log"
case $1 in
    --version) echo "uv 0.0.0" ;;
    python) echo "[{\\"url\\":\\"$URL\\"}]" ;;
    venv)
        mkdir -p "${!#}/bin" && touch "${!#}/pyvenv.cfg"
        cp "$(dirname "$(realpath "$0")")/venv-python" "${!#}/bin/python" ;;
esac
[[ "$*" != *"${UV_FAILS-nothing}"* ]]
""",
    "venv-python": """\
case "$*" in
    --version) echo Python 3.12.0 ;;
    *"import jax"*) echo jax 0 ;;
    *--print_config*) exit "${TRAIN_EXIT-0}" ;;
    *bert_jax.train*)
        echo "$HOSTNAME trains: $*"
        [[ -z ${TRAINER-} ]] || exec "$TRAINER" "$@"
        exit "${TRAIN_EXIT-0}" ;;
esac
""",
}


def write_worker(tools: pathlib.Path) -> None:
    """Write the commands of a worker."""
    for name, text in _WORKER.items():
        write_command(tools / name, text)


@pytest.fixture
def worker_tools(tools):
    """Return the folder of commands, with those of a worker."""
    write_worker(tools)
    return tools
