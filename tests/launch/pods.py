"""Stand in for Google Cloud and its workers, for the scripts of launch/ in a clone.

A worker is a folder of this machine; ssh and scp are commands that run there. Its python3 brings
a stand-in for uv, which makes a Python that prints its arguments; with TRAINER, it is that.
"""

import contextlib
import functools
import os
import pathlib
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.launch.scripts import call, make_clone, write_cluster, write_command
from tests.launch.tpu_api import TpuApi, serving

TOKEN = "ya29.of-nobody"
_SSH = """\
address=${destination#*@}
home=$WORKERS/worker-${address##*.}
[[ ! -e $WORKERS/unreachable && ! -e $home.unreachable ]] || exit 255
mkdir -p "$home"
cd "$home"
export HOME=$home HOSTNAME=${home##*/} PATH=$WORKER_PATH
"""
# The Python of the environment that the stand-in for uv makes.
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


_PIP = f"""\
echo "python3 $*" >>"$HOME/calls.log"
[[ -z ${{NO_PIP-}} ]] || exit 1
[[ "$*" == *--version ]] || {{
    mkdir -p .uv/bin
    cat >.uv/bin/uv <<'UV'
{_UV}UV
    chmod +x .uv/bin/uv
}}"""


def make_tools(folder: pathlib.Path) -> str:
    """Write a worker's python3, which logs its calls in HOME; return a PATH that begins there."""
    write_command(folder / "python3", _PIP)
    return f"{folder}:{os.environ['PATH']}"


def run_on(home: pathlib.Path, command: str, **environment: str):
    """Run a command as ssh does on a worker: by bash, in its home folder."""
    around = os.environ | {"HOME": str(home), "HOSTNAME": home.name} | environment
    return call(["bash", "-c", command], cwd=home, env=around)


def write_ssh(folder: pathlib.Path) -> None:
    """Write ssh, scp and ssh-keygen: a worker is a folder of WORKERS, named by its address.

    WORKER_PATH is the PATH that a command has there. No worker answers while there is a file
    unreachable, worker N does not while there is worker-N.unreachable.
    """
    find = "while (($#)) && [[ $1 != *@* ]]; do shift; done; destination=$1; shift"
    write_command(folder / "ssh", find, "[[ $1 != -- ]] || shift", _SSH, 'exec bash -c "$*"')
    find = "source=${*: -2:1} destination=${*: -1}"
    name = "name=${destination#*:} destination=${destination%%:*}"
    write_command(folder / "scp", find, name, _SSH, 'cp "$source" "$name"')
    find = "while (($#)) && [[ $1 != -f ]]; do shift; done; (($#)) || exit 0"
    key = 'echo private >"$2"; echo "ssh-rsa AAAA me@here" >"$2.pub"'
    write_command(folder / "ssh-keygen", find, key)


class Pod:
    """Hold a clone, the stand-in for the API and the workers, driven by the real gcloud."""

    def __init__(self, folder: pathlib.Path, api: TpuApi, **environment: str) -> None:
        self.api = api
        self.clone = make_clone(folder / "clone")
        self.workers, self.state = folder / "workers", folder / "state"
        self.workdir = folder / "runs" / "a"
        self.cluster = write_cluster(folder / "cluster.env")
        self.workers.mkdir()
        write_ssh(folder / "bin")
        self.environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "WORKERS": str(self.workers),
            "WORKER_PATH": make_tools(folder / "tools"),
            "LIBTPU_LOCK": str(folder / "libtpu_lockfile"),
            "TRAINER": str(folder / "trainer"),
            **environment,
        }
        api.on_ready = functools.partial((self.workers / "unreachable").unlink, missing_ok=True)
        api.on_loss = self.lose

    def set(self, **changed: str) -> None:
        """Change settings of cluster.env."""
        write_cluster(pathlib.Path(self.cluster.partition("=")[2]), **changed)

    def run(self, script: str, *flags: str, code: int = 0, **changed: str):
        """Run a script of the clone, which must end with this code."""
        words = ["bash", str(self.clone / "launch" / script), self.cluster, *flags]
        ran = call(words, env=self.environment | changed)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran

    def lose(self) -> None:
        """Kill every process of the workers and remove their disks; nothing answers."""
        (self.workers / "unreachable").touch()
        for pids in self.workers.glob("*/bert_jax/logs/train.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int(pids.read_text().split()[0]), signal.SIGKILL)
        for worker in self.workers.glob("worker-*"):
            shutil.rmtree(worker, ignore_errors=True)


@contextmanager
def pod_with_gcloud(folder: pathlib.Path, api: TpuApi) -> Iterator[Pod]:
    """Make a pod with the real gcloud, logged in by a token."""
    (folder / "home").mkdir()
    (folder / "token").write_text(f"{TOKEN}\n")
    with serving(api) as address, contextlib.ExitStack() as end:
        real = {
            "HOME": str(folder / "home"),
            "CLOUDSDK_CONFIG": str(folder / "gcloud"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(folder / "token"),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{address}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{address}/compute/v1/",
        }
        pod = Pod(folder, api, **real)
        end.callback(pod.lose)
        yield pod
