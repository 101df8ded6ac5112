"""What watch.sh looks after: a clone, a stand-in for Google Cloud, workers that seem to train."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.launch import quick_gcloud
from tests.launch.clones import make_clone
from tests.launch.scripts import VALUES, write_command
from tests.launch.tpu_api import TpuApi, serving, write_ssh
from tests.launch.workers import make_tools

# One line of PLAN a start: how many checkpoints worker 0 adds, and what then happens: wait, for
# ever; hang, silent for two hours already; exit CODE [WORKER], where the other workers wait.
_TRAINER = """\
trap 'exit 143' TERM
trap 'echo "stacks of $HOSTNAME"' USR1
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


TOKEN = "ya29.of-nobody"


class Pod:
    """What a test looks at: the stand-in for the API, the workers, and what watch.sh wrote."""

    def __init__(self, folder: pathlib.Path, api: TpuApi) -> None:
        self.api = api
        self.clone = make_clone(folder / "clone")
        self.workers = folder / "workers"
        self.workdir = folder / "runs" / "a"
        self.state = folder / "state"
        self.plan = folder / "plan"
        self.environment: dict[str, str] = {}
        (folder / "starts").mkdir()
        self.workers.mkdir()
        write_ssh(folder / "bin")
        write_command(folder / "trainer", _TRAINER)
        (folder / "cluster.env").write_text("".join(f"{n}={v}\n" for n, v in VALUES.items()))
        self.cluster = f"--cluster={folder / 'cluster.env'}"
        self._folder = folder

    @contextmanager
    def on(self, environment: dict[str, str]) -> Iterator["Pod"]:
        """Itself, with what every pod needs added to these; in the end nothing of it runs."""
        self.environment = os.environ | {
            "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
            "WORKERS": str(self.workers),
            "WORKER_PATH": f"{make_tools(self._folder / 'tools')}",
            "LIBTPU_LOCK": str(self._folder / "libtpu_lockfile"),
            "TRAINER": str(self._folder / "trainer"),
            "STARTS": str(self._folder / "starts"),
            "PLAN": str(self.plan),
        }
        self.environment |= environment
        self.api.on_ready, self.api.on_loss = self.is_ready, self.is_lost
        try:
            yield self
        finally:
            self.is_lost()

    def arguments(self, *flags: str) -> list[str]:
        return [
            *("bash", str(self.clone / "launch" / "watch.sh"), self.cluster, "--poll_secs=0.05"),
            *(f"--state_dir={self.state}", "--config=configs/tiny.py", *flags),
            *(
                []
                if any(f.startswith("--workdir") for f in flags)
                else [f"--workdir={self.workdir}"]
            ),
        ]

    def watch(self, *flags: str, plan: str = "", code: int = 0, timeout: int = 200) -> str:
        """Run watch.sh to its end; what it said, and its events."""
        self.plan.write_text(plan)
        ran = subprocess.run(
            self.arguments(*flags),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self.environment,
            timeout=timeout,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def is_ready(self) -> None:
        (self.workers / "unreachable").unlink(missing_ok=True)

    def is_lost(self) -> None:
        """Every process of the workers is killed, their disks are gone and nothing answers."""
        (self.workers / "unreachable").touch()
        for pids in self.workers.glob("*/bert_jax/logs/train.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int(pids.read_text().split()[0]), signal.SIGKILL)
        for worker in self.workers.glob("worker-*"):
            shutil.rmtree(worker, ignore_errors=True)


@contextmanager
def quick_pod(folder: pathlib.Path, api: TpuApi) -> Iterator[Pod]:
    """A pod with the stand-in for gcloud."""
    with serving(api) as address:
        gcloud = pathlib.Path(quick_gcloud.__file__)
        write_command(folder / "bin" / "gcloud", f'exec {sys.executable} -I -S {gcloud} "$@"')
        quick = {
            "API_PORT": address.rpartition(":")[2],
            "BUCKETS": str(folder / "buckets"),
            "STOP_GRACE_SECS": "2",
            "STACKS_SECS": "0.4",
        }
        with Pod(folder, api).on(quick) as pod:
            yield pod


@contextmanager
def pod_with_gcloud(folder: pathlib.Path, api: TpuApi) -> Iterator[Pod]:
    """A pod with the real gcloud, logged in by a token."""
    (folder / "home").mkdir()
    (folder / "token").write_text(f"{TOKEN}\n")
    with serving(api) as address:
        real = {
            "HOME": str(folder / "home"),
            "CLOUDSDK_CONFIG": str(folder / "gcloud"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(folder / "token"),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{address}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{address}/compute/v1/",
        }
        with Pod(folder, api).on(real) as pod:
            yield pod
