"""Send the metrics of a run to Weights & Biases too, if config.log.wandb names a project.

A thread makes its calls in order, so that none of them delays a step or fails a run. The service
keeps the first numbers of a step: steps repeated after a kill have the same numbers.
"""

import pathlib
import queue
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.config import RunConfig, recorded
from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_file
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import DamagedFile

FILE = "wandb.json"  # the id of the run, with which a later start continues it
FOLDER = "wandb"  # files of the package, of this host
INIT_SECS = 60.0
UPLOAD_SECS = 30.0  # limit for the end of a run
STOPPED_UPLOAD_SECS = 10.0  # a stopped run may soon be killed
_ID = re.compile(r"[\w-]{1,64}")


def check_package(project: str) -> None:
    """Raise Refused if the wandb package is missing or cannot be imported."""
    problem = "it is not installed"
    try:
        import wandb

        if hasattr(wandb, "init"):  # a mere folder called wandb, as the package makes, has none
            return
    except ImportError as error:
        if error.name != "wandb":
            problem = _first_line(error)
    except Exception as error:  # an incompatible package may raise anything
        problem = _first_line(error)
    raise Refused(
        f"config.log.wandb is {project!r}, and the package wandb cannot be imported: {problem}; "
        "pip install wandb, or leave the setting out"
    )


class WandbWriter:
    """Send the numbers of a run: a Listener.

    A problem is reported in one line, after which nothing is sent.
    """

    def __init__(
        self, workdir: pathlib.Path, config: RunConfig, say: Callable[[str], None]
    ) -> None:
        """Begin the run, or continue the one whose id the workdir keeps, without waiting for it."""
        self._say = say
        self._lines: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._exit_code = 0
        self._thread = threading.Thread(
            target=self._work, args=(workdir, config), name="wandb", daemon=True
        )
        self._thread.start()

    def on_start(self, step: int) -> None:
        """Do nothing: the service keeps the first numbers of a repeated step."""

    def on_record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Hand over the numbers of a step, named as for TensorBoard."""
        self._say_notes()
        if self._thread.is_alive():
            self._lines.put((step, {f"{split}/{name}": value for name, value in numbers.items()}))

    def on_close(self, summary: dict[str, Any] | None) -> None:
        """End the run, and wait for pending uploads for a limited time."""
        is_whole = summary is not None
        limit_secs = UPLOAD_SECS if is_whole else STOPPED_UPLOAD_SECS
        self._exit_code = int(not is_whole)
        self._lines.put(None)
        self._thread.join(limit_secs)
        self._say_notes()
        if self._thread.is_alive():
            self._say(
                f"Weights & Biases has not taken all numbers in {limit_secs:.0f} s; metrics.jsonl "
                "has them"
            )

    def _say_notes(self) -> None:
        while not self._notes.empty():
            self._say(self._notes.get())

    def _work(self, workdir: pathlib.Path, config: RunConfig) -> None:
        try:
            run = _init_run(workdir, config)
            place = run.url or f"offline, in {workdir / FOLDER}; wandb sync sends it later"
            self._notes.put(f"Weights & Biases: {place}")
            while (line := self._lines.get()) is not None:
                step, numbers = line
                run.log(numbers, step=step)
            run.finish(exit_code=self._exit_code)
        except Exception as error:
            self._notes.put(
                f"nothing more goes to Weights & Biases: {_first_line(error)}; the run continues, "
                "and metrics.jsonl has all numbers"
            )


def _init_run(workdir: pathlib.Path, config: RunConfig) -> Any:
    import wandb

    settings = wandb.Settings(
        init_timeout=INIT_SECS,
        finish_timeout=UPLOAD_SECS,
        silent=True,
        console="off",  # the terminal is for the run's own output
        disable_git=True,  # else uncommitted changes of a clone are uploaded
        disable_code=True,
    )
    return wandb.init(
        project=config.log.wandb,
        id=_identity(workdir),
        name=workdir.resolve().name,
        dir=str(workdir),
        config=recorded(config),
        resume="allow",
        settings=settings,
    )


def _identity(workdir: pathlib.Path) -> str:
    """Return the id that the workdir keeps, chosen at the first start."""
    path = workdir / FILE
    try:
        identity = small_files.field(small_files.read_object(path, workdir), "id", str, path)
    except FileNotFoundError:
        identity = secrets.token_hex(8)
        write_file(path, f'{{"id": "{identity}"}}\n'.encode())
    if not _ID.fullmatch(identity):
        raise DamagedFile(f"{path}: 'id' is not the id of a run")
    return identity


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
