"""Load a checkpoint of any format: sizes, vocabulary, and arrays under bert_jax's names.

    hf:DIR           Hugging Face: config.json, model.safetensors, vocab.txt or tokenizer.json,
                     or vocab.json and merges.txt
    hf:NAME          the same, downloaded from the Hugging Face hub
    google:PREFIX    Google's TF1 checkpoint, with bert_config.json and vocab.txt next to it
    orbax:DIR        the workdir of a run of bert_jax, on a disk or gs://: its newest checkpoint
    orbax:DIR@STEP   the checkpoint of that step

Without a prefix, the format is detected from the files at the address.
"""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

import jax

from bert_jax.checkpoint import directory, reader
from bert_jax.config import ComputeConfig, MeshConfig
from bert_jax.config.schema import DISCRIMINATOR, GENERATOR
from bert_jax.interop import hub, huggingface, pretrained, tensor_names, tf1, vocabulary
from bert_jax.interop.pretrained import Pretrained, select_part
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime import run_record
from bert_jax.runtime import workdir as workdir_lib
from bert_jax.runtime.run_record import PretrainingRun
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN
from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.io import Refused, small_files
from data_pipeline.io.address import is_address
from data_pipeline.spec import schema

Address = str | os.PathLike[str]  # a path is a folder without a prefix
HF, GOOGLE, ORBAX = "hf", "google", "orbax"
SCHEMES = (HF, GOOGLE, ORBAX)
_HOW_TO_FIX = (
    "give hf:DIR (Hugging Face's files), google:PREFIX (a checkpoint of Google's TF1 code) or "
    "orbax:DIR (the workdir of a run)"
)


def load(address: Address, part: str | None = DISCRIMINATOR) -> Pretrained:
    """Read the encoder of a checkpoint, its pooler and heads if it has them, and its vocabulary.

    `part`, of PARTS, selects one of the two models of replaced-token detection; None keeps both.

    Raises:
      Refused: there is no checkpoint; a file is missing, damaged or does not match the others.
      OSError: a disk or a bucket refuses, or does not answer.
    """
    address = os.fspath(address)
    scheme, place = split_address(address)
    if scheme == ORBAX:
        checkpoint = _load_run(address, place)
    else:
        checkpoint = _load_files(address, scheme, place)
    return checkpoint if part is None else select_part(checkpoint, part)


def load_masked_lm(address: Address) -> Pretrained:
    """Read the model that predicts masked words; for replaced-token detection, the generator."""
    checkpoint = load(address, part=None)
    return select_part(checkpoint, GENERATOR if checkpoint.heads.generator else DISCRIMINATOR)


def _load_files(address: str, scheme: str, place: str) -> Pretrained:
    if scheme == HF:
        folder = _require_folder(address, place)
        config_json = huggingface.read_config(folder)
        config, (params, unread) = config_json.model, huggingface.read(config_json)
    else:
        prefix = tf1.find_prefix(place)
        config, params, unread = tf1.read(prefix)
        folder = prefix.parent
    words = vocabulary.read(folder)
    vocabulary.check_size(words, config.vocab_size, address)
    vocabulary.check_segments(words.template, config.type_vocab_size, address)
    if scheme == HF:
        huggingface.check_padding(config_json.family, words)
    rule = schema.TRANSFORMERS if scheme == HF else schema.GOOGLE
    return Pretrained(address, config, params, words, pair_truncation=rule, unread=unread)


def load_fine_tuned(address: Address) -> tuple[Pretrained, TaskLayer]:
    """Read a fine-tuned model and the meaning of its outputs.

    bert_jax's runs and exports record the meaning. For third-party transformers folders it follows
    from the class and the labels (id2label) in config.json.

    Raises:
      Refused: as load does; the model was not fine-tuned; its files contradict each other.
    """
    checkpoint = load(address)
    layer = checkpoint.task
    scheme, place = split_address(checkpoint.address)
    if scheme == HF and checkpoint.heads.classes:
        template, classes = checkpoint.vocabulary.template, checkpoint.heads.classes
        config_json = huggingface.read_config(pathlib.Path(place))
        layer = huggingface.read_task_layer(config_json, classes, template)
        if checkpoint.unread:
            raise Refused(
                f"{address} holds {tensor_names.list_names(checkpoint.unread)}, which none of "
                "transformers' classes has, so its layer may read something else than a BERT's "
                "vectors; predict with the program that trained it, or give the model that it was "
                "fine-tuned from, and fine-tune that"
            )
    if layer is None or not checkpoint.heads.classes:
        raise Refused(
            f"{address} is not a fine-tuned model: it has no layer of a task; make one with "
            "python -m bert_jax.finetune --config=configs/finetune/table.py (or glue.py, ner.py, "
            f"squad.py, swag.py) --config.init={address} --config.data.dir=DIR --workdir=WORKDIR"
        )
    width = checkpoint.heads.classes
    expected = {REGRESS: 1, CHOOSE: 1, SPAN: 2}.get(layer.kind, len(layer.labels))
    if width != expected:
        raise Refused(
            f"{address}: the layer of the task ({layer.kind}) has {width} outputs, but {expected} "
            "names; put back the config.json that it came with"
        )
    if len(set(layer.labels)) < len(layer.labels):
        raise Refused(
            f"{address} has two labels of one name: {layer.labels!r:.80}; give each label a name "
            "of its own in id2label of its config.json"
        )
    reads_transform = checkpoint.config.pooler_type == "mlm_transform"
    has_pooler = ("mlm" if reads_transform else "pooler") in checkpoint.params
    has_pooler = has_pooler or checkpoint.config.bilstm_units > 0  # the layer reads LSTMs instead
    if not has_pooler and (reads_transform or layer.kind in (CLASSIFY, REGRESS, CHOOSE)):
        raise Refused(f"{address} has no pooler, which its layer reads; export it with one")
    return checkpoint, layer


def split_address(address: str) -> tuple[str, str]:
    """Return the format of the checkpoint at an address, from SCHEMES, and its place.

    A model of the Hugging Face hub is downloaded, and its place is the folder in the hub's cache.

    Raises:
      Refused: there is no checkpoint.
    """
    scheme, colon, place = address.partition(":")
    if colon and scheme in SCHEMES:
        if not place:
            raise Refused(f"the checkpoint {address!r} names no place; {_HOW_TO_FIX}")
        if scheme == HF and not pathlib.Path(place).exists() and hub.is_name(place):
            place = str(hub.fetch(place))
        return scheme, place
    if is_address(address):
        return ORBAX, address
    if pathlib.Path(f"{address}.index").is_file() or address.endswith(".index"):
        return GOOGLE, address
    folder = _require_folder(address, address)
    if (folder / tf1.CONFIG).is_file() and any(folder.glob("*.index")):
        return GOOGLE, address
    if (folder / run_record.FILE).is_file():
        return ORBAX, address
    if (folder / huggingface.CONFIG).is_file():
        return HF, address
    raise Refused(f"{address} holds no checkpoint; {_HOW_TO_FIX}")


def _require_folder(address: str, place: str) -> pathlib.Path:
    if not pathlib.Path(place).is_dir():
        raise Refused(
            f"the checkpoint {address!r} is not a folder on this machine; {_HOW_TO_FIX}, or "
            "hf:NAME (a model of the Hugging Face hub, which is downloaded)"
        )
    return pathlib.Path(place)


def split_step(place: str) -> tuple[str, int | None]:
    """Split DIR@STEP into the workdir and the step, None for the newest checkpoint.

    A folder whose own name is DIR@STEP is a workdir.
    """
    workdir, mark, step = place.rpartition("@")
    if mark and step.isdecimal() and not pathlib.Path(place).exists():
        return workdir, int(step)
    return place, None


@contextlib.contextmanager
def open_workdir(place: str) -> Iterator[workdir_lib.Workdir]:
    """Yield a workdir with local small files; files in a bucket are fetched for the block."""
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
        yield workdir_lib.fetch_workdir(split_step(place)[0], pathlib.Path(folder))


def read_run(address: str) -> PretrainingRun | None:
    """Read the record of the pre-training run that wrote a checkpoint; None for other formats.

    Raises:
      Refused: there is no checkpoint, or it was fine-tuned on a task.
    """
    scheme, place = split_address(address)
    if scheme != ORBAX:
        return None
    with open_workdir(place) as storage:
        return run_record.read(storage.home)


def _load_run(address: str, place: str) -> Pretrained:
    """Read a checkpoint of a run, the newest unless a step is given, through one device."""
    workdir, step = split_step(place)
    with open_workdir(place) as storage:
        record = run_record.read_model(storage.home)
        step = choose_step(address, workdir, step, storage)
        source = f"checkpoint {step} of {workdir}"
        config = record.config_at(step)
        words = record.vocabulary
        receipt = directory.read_receipt(directory.locate(storage.checkpoints, step))
        run_record.check_vocabulary(words, receipt["run"], source)
        vocabulary.check_size(words, record.run.model.vocab_size, address)
        mesh = mesh_lib.make_mesh(MeshConfig(), jax.local_devices()[:1])
        with jax.set_mesh(mesh):
            dims = reader.read_param_dims(storage.checkpoints, step)
            tensor_names.check_layers(dims, config, source)
            run_record.check_model(record.run.model, receipt["run"], source)
            model = pretrained.build_model_of_parts(config, dims)
            restored = reader.restore_params(storage.checkpoints, step, model, mesh)
            params = jax.tree.map(pretrained.copy_to_host, restored, model.declared)
    trained = {name: part for name, part in params.items() if name not in record.untrained}
    if record.task is not None and "mlm" in trained:  # the task's layer reads its transform
        trained["mlm"] = {k: v for k, v in trained["mlm"].items() if k != "output_bias"}
    recorded = "" if record.task is None else record.task.options.pair_truncation
    compute = ComputeConfig(compute_dtype=record.run.compute.compute_dtype)
    return Pretrained(
        address, config, trained, words, record.task, compute, recorded or schema.GOOGLE
    )


def choose_step(address: str, workdir: str, step: int | None, storage: workdir_lib.Workdir) -> int:
    """Return the given step or the newest checkpoint's; refuse a step that was not saved."""
    if step is not None:
        saved = directory.find_steps(directory.make_absolute(storage.checkpoints))
        if step not in saved:
            raise Refused(
                f"{address}: {workdir} has no checkpoint of step {step}; it has checkpoints of "
                f"{small_files.list_names(list(map(str, saved)))}"
            )
        return step
    newest = reader.find_newest_step(storage.checkpoints)
    if newest is None:
        raise Refused(
            f"{address} holds a run that has not saved a checkpoint yet; wait for the first "
            "one, or start its command again"
        )
    _, damaged = reader.find_readable_step(directory.make_absolute(storage.checkpoints))
    if damaged:
        vocabulary.note(f"{damaged[0]}; the checkpoint of step {newest:,} is read")
    return newest
