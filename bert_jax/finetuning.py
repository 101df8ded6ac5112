"""What a fine-tuning run is made of: a checkpoint, a task, and the trainer's own parts."""

import dataclasses
import pathlib
import time
from collections.abc import Sequence

import jax

from bert_jax import config as config_lib
from bert_jax import finetune_check, initial_weights, preparation, pretrained
from bert_jax import mesh as mesh_lib
from bert_jax import workdir as workdir_lib
from bert_jax.config import ModelConfig
from bert_jax.finetune_config import FinetuneConfig, with_length
from bert_jax.models import bert
from bert_jax.preparation import Learned, Setup
from bert_jax.pretrained import Pretrained
from bert_jax.profiling import Window
from bert_jax.run_feed import RunPhase
from bert_jax.screen import Screen
from bert_jax.task_feed import TaskFeed, TaskPhase
from bert_jax.tasks.objectives import OBJECTIVES, PACKED
from bert_jax.tasks.opening import open_task
from bert_jax.tasks.task import Task
from bert_jax.workdir import Workdir


def heads_of(task: Task) -> bert.Heads:
    """The task's layer alone."""
    return bert.Heads(mlm=False, nsp=False, classes=task.head_width)


def prepare(
    config: FinetuneConfig,
    workdir: Workdir | pathlib.Path,
    devices: Sequence[jax.Device] | None = None,
    profiled: Window | None = None,
    began: float | None = None,
) -> Setup:
    """Check all of a fine-tuning run that can be checked before compiling, and build its parts.

    As preparation.prepare does of pre-training.

    Raises:
      ValueError, OSError: one sentence about the first thing that does not fit.
    """
    began = time.time() if began is None else began
    finetune_check.check(config)
    storage = workdir if isinstance(workdir, Workdir) else workdir_lib.local(workdir)
    screen = Screen(is_writer=jax.process_index() == 0)
    with screen.spinning(f"reading {config.init}"):
        checkpoint = _without_task(pretrained.load(config.init))
    data = with_length(config.data, checkpoint.config.max_position_embeddings)
    config = dataclasses.replace(config, data=data)
    check_length(config, checkpoint)
    with screen.spinning(f"reading the examples of {config.data.task}"):
        task = open_task(config.data, checkpoint.vocabulary)
    device_count = jax.device_count() if devices is None else len(devices)
    unit = mesh_lib.batch_unit(config.mesh, device_count, config.micro_batches)
    feed = TaskFeed(task, checkpoint.vocabulary, resolved(config, task, checkpoint.config), unit)
    phase = TaskPhase(feed)

    def opened() -> tuple[Sequence[RunPhase], Sequence[tuple[str, str]]]:
        return [phase], task_rows(feed.config, task, checkpoint, phase)

    def fresh_params(model: bert.Model, mesh: jax.sharding.Mesh) -> bert.Params:
        return pretrained.placed(checkpoint, model, mesh, config.seed)[0]

    learned = Learned(feed, OBJECTIVES[task.kind], heads_of(task), opened, fresh_params)
    return preparation.assembled(learned, storage, screen, began, devices, profiled)


def _without_task(checkpoint: Pretrained) -> Pretrained:
    """A task's layer is always drawn: that of an earlier task says nothing of this one."""
    params = {name: part for name, part in checkpoint.params.items() if name != "classifier"}
    return dataclasses.replace(checkpoint, params=params)


def check_length(config: FinetuneConfig, checkpoint: Pretrained) -> None:
    """Raise if rows may be longer than the checkpoint has positions.

    Raises:
      ValueError: names both.
    """
    positions = checkpoint.config.max_position_embeddings
    if config.data.max_seq_length > positions:
        raise ValueError(
            f"config.data.max_seq_length is {config.data.max_seq_length}, and {config.init} has "
            f"{positions} positions; set it to {positions} or less"
        )


def resolved(config: FinetuneConfig, task: Task, model: ModelConfig) -> FinetuneConfig:
    """The config with what the checkpoint and the examples say filled in.

    model is the checkpoint's; phases, warm-up and the position that batches end at follow from the
    training split. Steps are those of Google's script: examples / batch_size * epochs.

    Source: run_classifier.py@eedf5716ce main.

    Raises:
      ValueError: the split has no examples, or too few for one step; config.model contradicts the
        checkpoint.
    """
    examples = task.splits["train"].examples
    steps = int(examples / config.batch_size * config.epochs)
    if steps < 1:
        raise ValueError(
            f"the training split has {examples} examples, in config.epochs = {config.epochs} fewer "
            f"than one batch of config.batch_size = {config.batch_size}; lower that, or give more "
            "epochs or examples"
        )
    sized = initial_weights.sizes(config.model, model, config.init)
    # Rounded up: where an epoch is no whole number of batches its last evaluation is the end's.
    evaluated_every = -(-examples // (config.batch_size * config.evaluations_per_epoch))
    phase = config_lib.Phase(
        seq_len=config.data.max_seq_length,
        steps=steps,
        batch_size=config.batch_size,
        max_predictions_per_seq=20,  # nothing reads it: as earlier versions recorded it
        micro_batches=config.micro_batches,
    )
    return dataclasses.replace(
        config,
        model=dataclasses.replace(sized, vocab_size=model.vocab_size),
        phases=(phase,),
        eval=dataclasses.replace(config.eval, every_steps=evaluated_every),
        optim=dataclasses.replace(config.optim, warmup_steps=int(steps * config.warmup_share)),
    )


def _laid_out(config: FinetuneConfig, task: Task) -> str:
    (phase,) = config.phases
    if task.kind in PACKED:
        return f"in {phase.batch_size:,} rows of {phase.seq_len}"
    return "in rows cut to the longest of them"


def task_rows(
    config: FinetuneConfig, task: Task, checkpoint: Pretrained, phase: TaskPhase
) -> list[tuple[str, str]]:
    """Labels and texts of what is learned, for the first block on the screen."""
    splits = ", ".join(f"{name} {rows.examples:,}" for name, rows in task.splits.items())
    rows = [
        ("init", f"{checkpoint.address}, {checkpoint.parameter_count:,} parameters"),
        ("task", f"{task.name}: {splits} examples"),
        ("", f"of at most {config.data.max_seq_length} tokens"),
        *(("", note) for note in task.notes),
        (
            "steps of",
            f"{config.batch_size:,} examples {_laid_out(config, task)}, "
            f"{phase.of_a_step['epochs']:,.1f} epochs",
        ),
    ]
    if task.main_score in task.baseline:
        known = f"{task.main_score} {task.baseline[task.main_score]:.3f} without reading the text"
        rows.append(("baseline", known))
    return rows
