"""Send the numbers of a run to Weights & Biases too, where config.log.wandb names a project.

A thread makes its calls in order, so that none of them delays a step or fails a run. The service
keeps the first numbers of a step: those of steps repeated after a kill are the same again.
"""

import pathlib
import queue
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.config import recorded
from bert_jax.record_files import write_whole
from bert_jax.run_config import RunConfig
from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile

FILE = "wandb.json"  # the id of the run, with which a later start continues it
FOLDER = "wandb"  # files of the package, of this host
INIT_SECS = 60.0
UPLOAD_SECS = 30.0  # at the end of a run
STOPPED_UPLOAD_SECS = 10.0  # of one that was told to stop, and may soon be killed
_ID = re.compile(r"[\w-]{1,64}")


def check_package(project: str) -> None:
    """Raise if the wandb package cannot be imported.

    Raises:
      ValueError: always then.
    """
    problem = "it is not installed"
    try:
        import wandb

        if hasattr(wandb, "init"):  # not so of a folder called wandb, as the package makes them
            return
    except ImportError as error:
        if error.name != "wandb":
            problem = _first_line(error)
    except Exception as error:  # whatever a package raises that does not fit the others
        problem = _first_line(error)
    raise ValueError(
        f"config.log.wandb is {project!r}, and the package wandb cannot be imported: {problem}; "
        "pip install wandb, or leave the setting out"
    )


class WandbWriter:
    """Writes one run; a problem is one line on the screen, after which nothing is sent."""

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

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Hand over the numbers of a step, named as for TensorBoard."""
        self._say_notes()
        if self._thread.is_alive():
            self._lines.put((step, dict(numbers)))

    def end(self, is_whole: bool) -> None:
        """End the run, and wait for what is still to be sent, but not for long."""
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
            run = _begun(workdir, config)
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


def _begun(workdir: pathlib.Path, config: RunConfig) -> Any:
    import wandb

    settings = wandb.Settings(
        init_timeout=INIT_SECS,
        finish_timeout=UPLOAD_SECS,
        silent=True,
        console="off",  # the terminal is the run's
        disable_git=True,  # or the changes of a clone are sent
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
    """Return the id that the workdir keeps, drawn at the first start.

    Raises:
      DamagedFile: wandb.json is not what an earlier start wrote.
      OSError: it cannot be read or written.
    """
    path = workdir / FILE
    try:
        identity = small_files.field(small_files.read_object(path, workdir), "id", str, path)
    except FileNotFoundError:
        identity = secrets.token_hex(8)
        write_whole(path, f'{{"id": "{identity}"}}\n'.encode())
    if not _ID.fullmatch(identity):
        raise DamagedFile(f"{path}: 'id' is not that of a run")
    return identity


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
