"""A checkpoint written in the layout of other code, whole and proven, or not at all."""

import contextlib
import dataclasses
import pathlib

import jax
import numpy as np

from bert_jax import (
    checkpoint_vocabulary,
    export_proof,
    hf_export,
    model_card,
    pretrained,
    run_export,
    tf1_export,
)
from bert_jax import mesh as mesh_lib
from bert_jax.config import MeshConfig
from bert_jax.exit_codes import Refused
from bert_jax.models import bert
from bert_jax.named_tensors import OPTIONAL_PARTS, by_path
from bert_jax.pretrained import GOOGLE, HF, SCHEMES, Pretrained
from bert_jax.task_layer import TaskLayer
from data_pipeline.files import is_address
from data_pipeline.whole_folder import WORKING, check_output, whole_folder

CHECKPOINT = "bert_model.ckpt"  # what Google calls its own
CARD = "README.md"
_LAST = {HF: hf_export.LAST, GOOGLE: tf1_export.LAST, pretrained.ORBAX: run_export.LAST}


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a checkpoint is to be written."""

    scheme: str  # one of pretrained.SCHEMES
    folder: pathlib.Path
    prefix: str = ""  # of a checkpoint of Google's, within the folder

    def address_in(self, folder: pathlib.Path) -> str:
        """The address of what lies in a folder as it would lie in this one."""
        return f"{self.scheme}:{folder / self.prefix}"


def target(address: str) -> Target:
    """What an address says of where to write.

    Raises:
      ValueError: it names no layout, no folder of this machine, or one that holds something.
    """
    scheme, _, where = address.partition(":")
    if scheme not in SCHEMES or not where:
        raise ValueError(
            f"--to is {address!r}; it must name the layout: hf:DIR, google:DIR/{CHECKPOINT} or "
            "orbax:DIR"
        )
    if is_address(where):
        raise ValueError(
            f"--to is {address!r}; an export is written to a folder of this machine: give one, and "
            "copy it to the bucket then"
        )
    folder, prefix = pathlib.Path(where), ""
    if scheme == GOOGLE:
        is_folder = where.endswith("/") or folder.is_dir()
        folder, prefix = (folder, CHECKPOINT) if is_folder else (folder.parent, folder.name)
    _refuse_files(address, folder)
    check_output(folder, _LAST[scheme])
    return Target(scheme, folder, prefix)


def _refuse_files(address: str, folder: pathlib.Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--to is {address!r}, but {folder} is a file; give a new folder")
    there = [] if not folder.exists() else sorted(path.name for path in folder.iterdir())
    if there and WORKING not in there:
        raise ValueError(
            f"--to is {address!r}, but {folder} holds {there[0]}"
            f"{f' and {len(there) - 1} more' if len(there) > 1 else ''}; give a new or an empty "
            "folder"
        )


def fitting(held: Pretrained, to: Target) -> Pretrained:
    """What the layout has names for: a task's layer is for Hugging Face's, if the task is known."""
    if to.scheme == HF and held.task is not None:
        return _in_own_units(held, held.task)
    params = {name: part for name, part in held.params.items() if name != "classifier"}
    return dataclasses.replace(held, params=params, task=None)


def _in_own_units(held: Pretrained, task: TaskLayer) -> Pretrained:
    """The same with a layer that gives the numbers themselves, for code that knows no mean."""
    if (task.mean, task.deviation) == (0.0, 1.0):
        return held
    mean, deviation = np.float32(task.mean), np.float32(task.deviation)
    layer = held.params["classifier"]
    scaled = {"kernel": layer["kernel"] * deviation, "bias": layer["bias"] * deviation + mean}
    plain = dataclasses.replace(task, mean=0.0, deviation=1.0)
    return dataclasses.replace(held, params=held.params | {"classifier": scaled}, task=plain)


def missing(held: Pretrained) -> tuple[str, ...]:
    """The parts of a pre-trained BERT that a checkpoint has not; one of a task needs none."""
    if held.task is not None:
        return ()
    return tuple(part for part in OPTIONAL_PARTS if part not in held.params)


def completed(held: Pretrained, seed: int) -> Pretrained:
    """The same with the parts that it lacks, drawn as a model has them before its first step."""
    on = mesh_lib.make(MeshConfig(), jax.local_devices()[:1])
    with jax.set_mesh(on):
        model = bert.build(held.config, jax.default_backend())
        params, _ = pretrained.placed(held, model, on, seed)
        drawn = {
            part: jax.tree.map(pretrained.on_host, params[part], model.declared[part])
            for part in missing(held)
        }
    return dataclasses.replace(held, params=held.params | drawn)


def check(held: Pretrained, to: Target) -> None:
    """Raise if the layout cannot hold this checkpoint.

    Raises:
      ValueError: arrays that are not finite numbers, or what Google's code does not compute.
    """
    bad = [path for path, leaf in by_path(held.params).items() if not np.all(np.isfinite(leaf))]
    if bad:
        raise ValueError(
            f"{held.address} holds numbers that are not finite in {bad[0]} and {len(bad) - 1} more "
            "arrays; give an earlier checkpoint"
        )
    if to.scheme == GOOGLE:
        tf1_export.check(held.config, held.address)


def write(held: Pretrained, to: Target, drawn: tuple[str, ...]) -> dict[str, float]:
    """Write the checkpoint and read it back; the largest differences, by what differs.

    drawn are the parts that were initialised for it.

    Raises:
      Refused: what was written is not what was read; nothing is left. Another process writes there.
      OSError: the disk refuses.
    """
    with contextlib.ExitStack() as stack:
        try:
            files = stack.enter_context(whole_folder(to.folder, _LAST[to.scheme]))
        except ValueError as error:
            raise Refused(str(error)) from error
        if to.scheme == HF:
            hf_export.write(held, files)
            can_tokenise = (files / checkpoint_vocabulary.TOKENIZER).exists()
            card = model_card.text(held, to.folder.name, drawn, can_tokenise)
            (files / CARD).write_text(card, encoding="utf-8")
        elif to.scheme == GOOGLE:
            tf1_export.write(held, files / to.prefix)
        else:
            run_export.write(held, files)
        return _proven(held, to.address_in(files))


def _proven(held: Pretrained, copy: str) -> dict[str, float]:
    try:
        largest = export_proof.differences(held, pretrained.load(copy))
    except ValueError as error:
        raise Refused(
            f"what was written cannot be read back, and nothing was kept: {error}; check the disk, "
            "and report this"
        ) from error
    for what, difference in largest.items():
        if not difference <= export_proof.TOLERANCE:
            raise Refused(
                f"the {what} of what was written differ from those of {held.address} by up to "
                f"{difference:.1e}, more than {export_proof.TOLERANCE:g}: nothing was kept; check "
                "the disk, and report this"
            )
    return largest
