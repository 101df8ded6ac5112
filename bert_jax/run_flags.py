"""The flags of every entry that runs the loop."""

from absl import flags

from bert_jax import workdir
from bert_jax.run_process import Place


class RunFlags:
    """Where a run lies, which of its processes this is, and what is traced; read once parsed."""

    def __init__(self) -> None:
        self._workdir = flags.DEFINE_string(
            "workdir", None, "folder of the run, or gs://BUCKET/PATH: checkpoints, metrics, summary"
        )
        self._scratch = flags.DEFINE_string(
            "scratch", workdir.SCRATCH, "folder of this host for small files of runs on gs://"
        )
        self._profile_steps = flags.DEFINE_string(
            "profile_steps", None, "FIRST:LAST, numbers of steps to trace into the workdir"
        )
        self._multihost = flags.DEFINE_bool(
            "multihost", False, "one of several processes, as on a TPU pod"
        )
        self._coordinator = flags.DEFINE_string(
            "coordinator_address", None, "host:port of process 0, where the platform does not tell"
        )
        self._processes = flags.DEFINE_integer(
            "num_processes", None, "processes of the run, likewise"
        )
        self._process = flags.DEFINE_integer(
            "process_id", None, "number of this process from 0, likewise"
        )

    @property
    def profile_steps(self) -> str | None:
        return self._profile_steps.value

    def place(self) -> Place:
        """Where this process runs."""
        return Place(
            self._workdir.value or "",
            self._scratch.value,
            self._multihost.value,
            self._coordinator.value,
            self._processes.value,
            self._process.value,
        )
