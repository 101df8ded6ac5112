"""Write the metrics of a run: metrics.jsonl, summary.json, TensorBoard events, Weights & Biases.

A thread makes the calls to Weights & Biases in order, so that none of them delays a step or fails a
run.
"""

import contextlib
import json
import os
import pathlib
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TextIO

from bert_jax.config import RunConfig, recorded
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import write_file, write_json
from data_pipeline.io.errors import explain_errors, get_first_line
from data_pipeline.io.jsonl import read_lines, truncate_records
from data_pipeline.io.small_files import DamagedFile

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
PREDICTIONS = "predictions"  # folder that fine-tuning writes
EVENTS = "tensorboard"
CURVES = "curves.png"  # written by logging/plots.py
BAD_STEPS = "bad_steps.jsonl"  # written by trainer/bad_steps.py
PROBE_SCORES = "probe.jsonl"  # a file of a probe's folder
LEFT_OUT = "left_out.json"  # written by trainer/bad_steps.py
VERIFIED = "data_verified.json"  # written by trainer/data_check.py
WANDB_ID = "wandb.json"  # holds the id with which a later start continues the run
WANDB_FOLDER = "wandb"  # the package's files on this host
INIT_SECS = 60.0
UPLOAD_SECS = 30.0  # limit for the end of a run
STOPPED_UPLOAD_SECS = 10.0  # a stopped run may soon be killed
_ID = re.compile(r"[\w-]{1,64}")


class Listener(Protocol):
    """Receive the numbers of a run; on process 0 the loop calls its listeners in order."""

    def on_start(self, step: int) -> None:
        """Continue after a step as if no later one was recorded; also called after a roll-back."""

    def on_record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Record the numbers of a step; split is "train" or "heldout"."""

    def on_close(self, summary: dict[str, Any] | None) -> None:
        """End the records; a finished run has a summary, which a listener may extend.

        Listeners are closed in reverse order.
        """


def _explain_errors(workdir: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    return explain_errors(str(workdir), "writing the records of the run")


class MetricsFile:
    """Write metrics.jsonl, and summary.json at the end: a Listener."""

    def __init__(self, workdir: pathlib.Path, last_step: int = -1) -> None:
        self._workdir, self._opened = workdir, contextlib.ExitStack()
        self._last_step = last_step  # last step of the run
        self._lines: TextIO  # opened by on_start
        self._earlier: set[tuple[int, str]]  # step and split of each line written before on_start

    def on_start(self, step: int) -> None:
        """Delete the lines of later steps, and the summary unless the run is at its end."""
        with _explain_errors(self._workdir):
            self._opened.close()
            if step != self._last_step:
                (self._workdir / SUMMARY).unlink(missing_ok=True)
            kept = truncate_records(self._workdir / METRICS, step, read_lines)
            self._earlier = {(line["step"], line["split"]) for line in kept}
            lines = small_files.open_to_write(self._workdir / METRICS, os.O_WRONLY | os.O_APPEND)
            self._lines = self._opened.enter_context(os.fdopen(lines, "a", encoding="utf-8"))

    def read_lines(self) -> list[dict[str, Any]]:
        """Read the lines written so far."""
        return read_lines(self._workdir / METRICS)

    def on_record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add a line of metrics, unless an earlier start did.

        A stop leaves a due evaluation to the next start. If this start is killed before it saves,
        the start after it repeats the evaluation.
        """
        if (step, split) not in self._earlier:
            self.write_lines([{"step": step, "split": split, **numbers}])

    def write_lines(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add lines."""
        with _explain_errors(self._workdir):
            for line in lines:
                self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()

    def on_close(self, summary: dict[str, Any] | None) -> None:
        """Close the file, and write the summary of a finished run."""
        with _explain_errors(self._workdir):
            self._opened.close()
            if summary is not None:
                write_json(self._workdir / SUMMARY, summary)


class EventsFile:
    """Write TensorBoard events: a Listener.

    Not tensorboardX's SummaryWriter: it writes in a thread, where the error of a full disk is lost
    and the run then waits forever for the thread to take the next event.
    """

    # tensorboardX is imported inside the functions that write events: it loads every installed
    # cloud client, a twelfth of the import time of a command that writes none.

    def __init__(self, workdir: pathlib.Path) -> None:
        self._workdir, self._opened = workdir, contextlib.ExitStack()

    def on_start(self, step: int) -> None:
        """Open a new file, which hides the events of later steps in earlier files."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder = self._workdir / EVENTS
        with _explain_errors(self._workdir):
            self._opened.close()
            folder.mkdir(exist_ok=True)
            newest = max((path.name for path in folder.glob("*.tfevents.*")), default="")
            name = f".{time.time_ns()}"  # names differ within a second
            self._events: Any = EventsWriter(str(folder / "events"), name)
            self._opened.callback(self._events.close)
            (made,) = folder.glob(f"*{name}")
            if made.name < newest:  # the clock went back; TensorBoard reads by name
                made.rename(folder / f"{newest}+")
            log = SessionLog(status=SessionLog.START)
            self._events.write_event(Event(wall_time=time.time(), step=step + 1, session_log=log))

    def on_record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add the numbers as scalars, named SPLIT/NAME."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        with _explain_errors(self._workdir):
            for name, value in numbers.items():
                # Not tensorboardX's summary.scalar: it gives stores "a b" and "a+b" one tag.
                scalar = Summary.Value(tag=f"{split}/{name}", simple_value=value)
                scalars = Summary(value=[scalar])
                event = Event(wall_time=time.time(), step=step, summary=scalars)
                self._events.write_event(event)
            self._events.flush()

    def on_close(self, summary: dict[str, Any] | None) -> None:
        """Close the file."""
        del summary
        with _explain_errors(self._workdir):
            self._opened.close()


def check_package(project: str) -> None:
    """Raise Refused if the wandb package is missing or cannot be imported."""
    problem = "it is not installed"
    try:
        import wandb

        if hasattr(wandb, "init"):  # a mere folder called wandb, as the package makes, has none
            return
    except Exception as error:  # an incompatible package may raise anything
        if not isinstance(error, ModuleNotFoundError) or error.name != "wandb":
            problem = get_first_line(error)
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
        """Begin a run at the service, or continue the run with the workdir's id; do not wait."""
        self._say = say
        self._lines: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()  # the run's thread prints them
        self._exit_code = 0
        self._thread = threading.Thread(
            target=self._work, args=(workdir, config), name="wandb", daemon=True
        )
        self._thread.start()

    def on_start(self, step: int) -> None:
        """Do nothing: the service keeps the first numbers of a repeated step."""

    def on_record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Queue the numbers of a step, named as for TensorBoard."""
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
            place = run.url or f"offline, in {workdir / WANDB_FOLDER}; wandb sync sends it later"
            self._notes.put(f"Weights & Biases: {place}")
            while (line := self._lines.get()) is not None:
                step, numbers = line
                run.log(numbers, step=step)
            run.finish(exit_code=self._exit_code)
        except Exception as error:
            self._notes.put(
                f"nothing more goes to Weights & Biases: {get_first_line(error)}; the run "
                "continues, and metrics.jsonl has all numbers"
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
    """Return the id in the workdir, which the first start chooses."""
    path = workdir / WANDB_ID
    try:
        identity = small_files.field(small_files.read_object(path, workdir), "id", str, path)
    except FileNotFoundError:
        identity = secrets.token_hex(8)
        write_file(path, f'{{"id": "{identity}"}}\n'.encode())
    if not _ID.fullmatch(identity):
        raise DamagedFile(f"{path}: 'id' is not the id of a run")
    return identity
