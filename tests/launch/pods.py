"""A clone, a stand-in for Google Cloud and workers that seem to train, for the scripts of launch/.

A worker is a folder of this machine; ssh and scp are commands that run there. Its python3 brings
a stand-in for uv, which makes a Python that prints its arguments and, with TRAINER, seems to train.
"""

import contextlib
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.launch import quick_gcloud
from tests.launch.scripts import make_clone, write_cluster, write_command
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
# One line of PLAN a start: how many checkpoints worker 0 adds, and what then happens: wait, for
# ever; hang, silent for two hours already; exit CODE [WORKER], where the other workers wait.
_TRAINER = """\
trap 'exit 143' TERM
trap 'echo "stacks of $HOSTNAME"' QUIT
for flag in "$@"; do
    if [[ $flag == --workdir=* ]]; then checkpoints=${flag#*=}/checkpoints; fi
done
checkpoints=${checkpoints/gs:/$BUCKETS}
start=$(($(cat "$STARTS/$HOSTNAME" 2>/dev/null || echo 0) + 1))
echo $start >"$STARTS/$HOSTNAME"
read -r saves what code worker <<<"$(sed -n "${start}p" "$PLAN")"
mkdir -p "$checkpoints"
[[ $HOSTNAME == worker-0 ]] || saves=0
newest=$(ls "$checkpoints" | sort -n | tail -n 1)
for ((i = 1; i <= saves; i++)); do
    mkdir "$checkpoints/$((${newest:-0} + i))"
    touch "$checkpoints/$((${newest:-0} + i))/commit_success.txt"
done
echo "saved $saves"
[[ $what != exit || -n $worker && $HOSTNAME != "worker-$worker" ]] || exit "$code"
[[ $what != hang ]] || touch -d '2 hours ago' logs/train.log
while sleep 0.1; do [[ $what == hang ]] || echo goes on; done
"""
# The Python of the environment that the stand-in for uv makes.
_PYTHON = """\
#!/usr/bin/env bash
case "$*" in
    --version) echo Python 3.12.0 ;;
    *"import jax"*) echo jax 0 ;;
    *--print_config*) exit "${TRAIN_EXIT-0}" ;;
    *bert_jax.doctor*)
        echo "$HOSTNAME" >>"$STARTS/examined"
        [[ ! -e $WORKERS/wrong ]] || { rm "$WORKERS/wrong" && exit 1; }
        ;;
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
    """Write a worker's python3, which logs its calls in HOME; return a PATH that begins there."""
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


def write_ssh(folder: pathlib.Path) -> None:
    """Write ssh, scp and ssh-keygen: a worker is a folder of WORKERS, named by its address.

    WORKER_PATH is the PATH that a command has there. No worker answers while there is a file
    unreachable, worker N does not while there is worker-N.unreachable.
    """
    write_command(
        folder / "ssh",
        "while (($#)) && [[ $1 != *@* ]]; do shift; done",
        "destination=$1 && shift",
        "[[ $1 != -- ]] || shift",
        _SSH,
        'exec bash -c "$*"',
    )
    write_command(
        folder / "scp",
        "source=${*: -2:1} destination=${*: -1}",
        "name=${destination#*:} destination=${destination%%:*}",
        _SSH,
        'cp "$source" "$name"',
    )
    write_command(
        folder / "ssh-keygen",
        "while (($#)) && [[ $1 != -f ]]; do shift; done",
        "(($#)) || exit 0",
        'echo private >"$2"',
        'echo "ssh-rsa AAAA me@here" >"$2.pub"',
    )


class Pod:
    """What a test looks at: the stand-in for the API, the workers, and what watch.sh wrote."""

    def __init__(self, folder: pathlib.Path, api: TpuApi, **environment: str) -> None:
        self.api = api
        self.clone = make_clone(folder / "clone")
        self.commands = folder / "bin"
        self.workers = folder / "workers"
        self.workdir = folder / "runs" / "a"
        self.state = folder / "state"
        self.plan = folder / "plan"
        self.cluster = write_cluster(folder / "cluster.env")
        (folder / "starts").mkdir()
        self.workers.mkdir()
        write_ssh(self.commands)
        write_command(folder / "trainer", _TRAINER)
        self.environment = {
            **os.environ,
            "PATH": f"{self.commands}:{os.environ['PATH']}",
            "WORKERS": str(self.workers),
            "WORKER_PATH": make_tools(folder / "tools"),
            "LIBTPU_LOCK": str(folder / "libtpu_lockfile"),
            "TRAINER": str(folder / "trainer"),
            "STARTS": str(folder / "starts"),
            "PLAN": str(self.plan),
            **environment,
        }
        api.on_ready, api.on_loss = self.is_ready, self.is_lost

    def set(self, **changed: str) -> None:
        """Change settings of cluster.env."""
        write_cluster(pathlib.Path(self.cluster.partition("=")[2]), **changed)

    def run(
        self, script: str, *flags: str, code: int = 0, typed: str | None = None, **changed: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of the clone, which must end with this code; `typed` is on its terminal."""
        ours, its = pty.openpty() if typed is not None else (0, subprocess.DEVNULL)
        if typed is not None:
            os.write(ours, typed.encode())
        ran = subprocess.run(
            ["bash", str(self.clone / "launch" / script), self.cluster, *flags],
            capture_output=True,
            text=True,
            stdin=its,
            env=self.environment | changed,
            timeout=500,
        )
        if typed is not None:
            os.close(ours)
            os.close(its)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran

    def watch_flags(self, *flags: str) -> list[str]:
        usual = ["--poll_secs=0.05", f"--state_dir={self.state}", "--config=configs/tiny.py"]
        has_workdir = any(flag.startswith("--workdir") for flag in flags)
        return [*usual, *flags, *([] if has_workdir else [f"--workdir={self.workdir}"])]

    def watch(self, *flags: str, plan: str = "", code: int = 0) -> str:
        """Run watch.sh to its end; return its output."""
        self.plan.write_text(plan)
        ran = self.run("watch.sh", *self.watch_flags(*flags), code=code)
        return ran.stdout + ran.stderr

    @contextmanager
    def watching(self, *flags: str, plan: str = "1 wait\n") -> Iterator[subprocess.Popen]:
        """Run watch.sh beside the test; its output is stdout, which the test reads to the end."""
        self.plan.write_text(plan)
        script = self.clone / "launch" / "watch.sh"
        watch = subprocess.Popen(
            ["bash", str(script), self.cluster, *self.watch_flags(*flags)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            cwd=self.state.parent,
        )
        try:
            yield watch
        finally:
            watch.send_signal(signal.SIGTERM)
            watch.communicate(timeout=20)

    def is_ready(self) -> None:
        (self.workers / "unreachable").unlink(missing_ok=True)

    def is_lost(self) -> None:
        """Kill every process of the workers and remove their disks; nothing answers."""
        (self.workers / "unreachable").touch()
        for pids in self.workers.glob("*/bert_jax/logs/train.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int(pids.read_text().split()[0]), signal.SIGKILL)
        for worker in self.workers.glob("worker-*"):
            shutil.rmtree(worker, ignore_errors=True)


@contextmanager
def quick_pod(folder: pathlib.Path, api: TpuApi) -> Iterator[Pod]:
    """Make a pod with the stand-in for gcloud."""
    with serving(api) as address, contextlib.ExitStack() as end:
        quick = {
            "API_PORT": address.rpartition(":")[2],
            "BUCKETS": str(folder / "buckets"),
            "STOP_GRACE_SECS": "2",
            "STACKS_SECS": "0.4",
        }
        pod = Pod(folder, api, **quick)
        gcloud = pathlib.Path(quick_gcloud.__file__)
        write_command(pod.commands / "gcloud", f'exec {sys.executable} -I -S {gcloud} "$@"')
        end.callback(pod.is_lost)
        yield pod


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
        end.callback(pod.is_lost)
        yield pod
