"""Build a fine-tuning run from a checkpoint, a task and the parts of the trainer."""

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Sequence

import jax

from bert_jax import config as config_lib
from bert_jax.checkpoint.reader import find_newest_step, find_run
from bert_jax.config import ModelConfig, model_rules, validate
from bert_jax.config.finetune_schema import FinetuneConfig, FinetunePhase, FinetuneRun, with_length
from bert_jax.config.phases import list_init_layers, split_into_rounds
from bert_jax.config.resolve import merge_sizes
from bert_jax.finetuning.feed import TaskFeed, describe_phases
from bert_jax.finetuning.objectives import PACKED, make_objective
from bert_jax.finetuning.prune import make_resize
from bert_jax.interop import load
from bert_jax.interop.pretrained import Pretrained, hash_for_others, place_params
from bert_jax.interop.warm_start import select_layers
from bert_jax.logging.console import Screen
from bert_jax.model import bert
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime import run_record
from bert_jax.runtime import workdir as workdir_lib
from bert_jax.runtime.profiler import Window
from bert_jax.runtime.workdir import Workdir
from bert_jax.tasks.registry import open_task
from bert_jax.tasks.task import Task
from bert_jax.trainer.compile import build_parts, settle_kernels
from bert_jax.trainer.feed import RunPhase
from bert_jax.trainer.setup import Setup, check_start, claim_workdir
from data_pipeline.io import Refused, small_files
from data_pipeline.io.small_files import DamagedFile


def build_finetuning(
    config: FinetuneConfig,
    workdir: Workdir | pathlib.Path,
    devices: Sequence[jax.Device] | None = None,
    profiled: Window | None = None,
    began: float | None = None,
) -> Setup:
    """Check all of a fine-tuning run that can be checked before compiling, and build its parts.

    bert_jax.trainer.setup.build_setup does so for pre-training.

    Raises:
      Refused, OSError: describes the first mismatch.
    """
    began = time.time() if began is None else began
    validate.check_finetune(config)
    storage = workdir if isinstance(workdir, Workdir) else workdir_lib.open_local_workdir(workdir)
    screen = Screen(is_writer=jax.process_index() == 0)
    config, checkpoint = _read_checkpoint(config, storage, screen)
    with screen.spinning(f"reading the examples of {config.data.task}"):
        task = open_task(config.data, checkpoint.vocabulary)
    device_count = jax.device_count() if devices is None else len(devices)
    unit = mesh_lib.batch_unit(config.mesh, device_count, config.micro_batches)
    resolved = resolve_config(config, task, checkpoint.config)
    if resolved.model.pooler_type != checkpoint.config.pooler_type:
        # The config asks for another pooler, which is initialized.
        params = {name: part for name, part in checkpoint.params.items() if name != "pooler"}
        checkpoint = dataclasses.replace(checkpoint, params=params)
    feed = TaskFeed(task, checkpoint.vocabulary, resolved, unit)
    digests = {"init's weights": hash_for_others(checkpoint), **feed.digests}
    start = check_start(feed.config, feed.provenance, storage, devices, profiled, digests)
    phases = describe_phases(feed)
    heads = bert.Heads(mlm=config.causal_weight > 0, nsp=False, classes=task.head_width)
    objectives = [make_objective(task.kind, config.causal_weight)] * len(feed.config.phases)
    build = functools.partial(build_parts, feed.config, objectives, heads, devices)
    parts, wrong_kernels = settle_kernels(build, start.record, screen)
    jax.set_mesh(parts.mesh)
    first = parts.models[0]
    setup = Setup(
        parts=parts,
        feed=feed,
        input_advice="Batches of a task are made in memory: other work keeps the cores here busy",
        phases=phases,
        initial_params=lambda: place_params(checkpoint, first, parts.mesh, config.seed)[0],
        storage=storage,
        screen=screen,
        data_rows=_describe_task(feed.config, task, checkpoint, phases, screen),
        profiled=profiled,
        began=began,
        findings=wrong_kernels,
        resize=make_resize(parts, feed) if config.prune.intermediate_size else None,
    )
    return claim_workdir(start, setup)


def _read_checkpoint(
    config: FinetuneConfig, storage: Workdir, screen: Screen
) -> tuple[FinetuneConfig, Pretrained]:
    """Read the checkpoint that a fine-tuning begins with, and settle how rows are made.

    Drops the layer of an earlier task, and with config.from_scratch all weights. A run that has
    saved its own weights goes on where the checkpoint is gone, such as an early step of a run.

    Raises:
      Refused: there is no such checkpoint, or it does not go with the config.
    """
    with screen.spinning(f"reading {config.init}"):
        try:
            checkpoint = select_layers(load.load(config.init), list_init_layers(config))
        except (OSError, Refused):
            resumed = _read_resumed(config, storage)
            if resumed is None:
                raise
            checkpoint = resumed
    task_parts = ("bilstm", "classifier")
    params = {name: part for name, part in checkpoint.params.items() if name not in task_parts}
    checkpoint = dataclasses.replace(checkpoint, params={} if config.from_scratch else params)
    positions = checkpoint.config.max_position_embeddings
    config, checkpoint = _keep_rows(config, checkpoint, storage)
    if config.data.max_seq_length > positions:
        raise Refused(
            f"config.data.max_seq_length is {config.data.max_seq_length}, and {config.init} has "
            f"{positions} positions; set it to {positions} or less"
        )
    if config.causal_weight and not checkpoint.config.is_causal:
        raise Refused(
            f"config.causal_weight is {config.causal_weight}, and {config.init} reads both sides "
            "of a token, so it would see the tokens that it predicts; leave it at 0, or begin with "
            "a left-to-right model"
        )
    return config, checkpoint


def _read_resumed(config: FinetuneConfig, storage: Workdir) -> Pretrained | None:
    """Return the sizes and the vocabulary of a run that has saved its weights; None without one."""
    path = storage.home / run_record.FILE
    with contextlib.suppress(OSError, Refused):  # the error about config.init says more
        record, _ = find_run(storage.home, storage.checkpoints)
        has_saved = find_newest_step(storage.checkpoints) is not None
        if has_saved and not config.checkpoint.fresh and record is not None and "task" in record:
            model = run_record.parse_run(record, path).model
            vocabulary = run_record.read_vocabulary(storage.home, record)
            return Pretrained(config.init, model, {}, vocabulary)
    return None


def _keep_rows(
    config: FinetuneConfig, checkpoint: Pretrained, storage: Workdir
) -> tuple[FinetuneConfig, Pretrained]:
    """Set how rows are made: as for the checkpoint, or as recorded in the run that is resumed."""
    record = None
    with contextlib.suppress(DamagedFile):  # handled where the workdir is checked
        record, _ = find_run(storage.home, storage.checkpoints)
    rule, words = checkpoint.pair_truncation, checkpoint.vocabulary
    if record is not None and "task" in record:  # one without a task is refused later
        path = storage.home / run_record.FILE
        recorded = small_files.field(record["config"], "data", dict, path)
        rule = small_files.field(recorded, "pair_truncation", str, path)
        template = run_record.read_template(storage.home, record, words)
        words = dataclasses.replace(words, template=template)
    data = with_length(config.data, checkpoint.config.max_position_embeddings)
    data = dataclasses.replace(data, pair_truncation=data.pair_truncation or rule)
    checkpoint = dataclasses.replace(checkpoint, vocabulary=words)
    return dataclasses.replace(config, data=data), checkpoint


def resolve_config(config: FinetuneConfig, task: Task, model: ModelConfig) -> FinetuneRun:
    """Complete the config by what follows from the checkpoint and the examples.

    model is the checkpoint's; the phases, the warm-up and the steps of evaluation follow from the
    training split. As in Google's script, steps are examples / batch_size * epochs.

    Source: run_classifier.py@eedf5716ce main.
    """
    examples = task.splits["train"].examples
    steps = int(examples / config.batch_size * config.epochs)
    if steps < 1:
        raise Refused(
            f"the training split has {examples} examples, in config.epochs = {config.epochs} fewer "
            f"than one batch of config.batch_size = {config.batch_size}; lower it, or give more "
            "epochs or examples"
        )
    sized = merge_sizes(config.model, model, config.init)
    # Rounded up: if an epoch is not a multiple of the batch, its last evaluation is at the end.
    evaluated_every = -(-examples // (config.batch_size * config.evaluations_per_epoch))
    phase = FinetunePhase(
        seq_len=config.data.max_seq_length,
        steps=steps,
        batch_size=config.batch_size,
        micro_batches=config.micro_batches,
        intermediate_size=model.intermediate_size,
    )
    settings = vars(config) | {
        "model": dataclasses.replace(sized, vocab_size=model.vocab_size, is_causal=model.is_causal),
        "phases": split_into_rounds(phase, config.prune),
        "eval": config_lib.EvalConfig(every_steps=evaluated_every),
        "optim": dataclasses.replace(config.optim, warmup_steps=int(steps * config.warmup_share)),
    }
    run = FinetuneRun(**settings)
    model_rules.check_architecture(run)
    return run


def _describe_task(
    config: FinetuneRun,
    task: Task,
    checkpoint: Pretrained,
    phases: Sequence[RunPhase],
    screen: Screen,
) -> list[tuple[str, str]]:
    splits = ", ".join(f"{name} {rows.examples:,}" for name, rows in task.splits.items())
    phase = config.phases[0]
    packed = f"in {phase.batch_size:,} rows of {phase.seq_len}"
    layout = packed if task.kind in PACKED else "in rows cut to the longest"
    epochs = f"{sum(each.per_step['epochs'] for each in phases):,.1f} epochs"
    weights = f"{checkpoint.parameter_count:,} parameters"
    if config.from_scratch:
        weights = "only its sizes and vocabulary: all weights are initialized"
    elif not checkpoint.params:
        weights = "which cannot be read now: the run has its own weights"
    rows = [
        ("init", f"{checkpoint.address}, {weights}"),
        ("task", f"{task.name}: {splits} examples"),
        ("", f"of at most {config.data.max_seq_length} tokens"),
        *task.describe_files(screen.text_width),
        ("steps of", f"{config.batch_size:,} examples {layout}, {epochs}"),
    ]
    if len(config.phases) > 1:
        numbers = range(len(phases))
        models = [config_lib.model_in_phase(config, number) for number in numbers]
        sizes = " -> ".join(f"{model.intermediate_size:,}" for model in models)
        steps = ", ".join(f"{config_lib.phase_start(config, number):,}" for number in numbers[1:])
        rows.append(("prune", f"{sizes} neurons in each layer after steps {steps}"))
    if task.main_score in task.baseline:
        score = f"{task.main_score} {task.baseline[task.main_score]:.3f}"
        rows.append(("baseline", f"{score} without reading the text"))
    return rows
