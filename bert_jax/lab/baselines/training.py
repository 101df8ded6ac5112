"""Cut a store into rows, and run the steps of a baseline so that a killed command resumes.

WORKDIR/baseline.json   kind, settings and digest of the store
       /vocab.txt       the store's vocabulary, named as in the store
       /state.npz       all arrays after the newest saved step: every minute and at the end
       /summary.json    written last: seconds, tokens, held-out loss
"""

import dataclasses
import functools
import hashlib
import io
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.lab.baselines.settings import BASELINES, BiLM, CoVe
from bert_jax.lab.runs import claim_folder
from bert_jax.logging.console import Screen
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import write_file, write_json
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.labeled.rows import EncodedRows, make_plain_rows
from data_pipeline.spec.fields import check_fields
from data_pipeline.store import TEXT, Split, Store, open_store
from data_pipeline.vocab import Vocabulary, load_recorded
from data_pipeline.vocab.sentencepiece_model import RECORDED

RECORD, STATE, SUMMARY = "baseline.json", "state.npz", "summary.json"
_SAVE_SECS = 60.0
_CLIP_NORM = 1.0
_MIN_STEPS = 3  # fewer are not timed
_LINES = 10  # lines on the screen per training
_STEP, _SECS, _LEAF = "step", "secs", "leaf_"

State = Any  # a tree of arrays


def open_text(address: str) -> Store:
    """Open the store of a baseline.

    Raises:
      Refused: open_store refuses it, or it has ready-made examples or no text.
    """
    store = open_store(address)
    if store.kind != TEXT or not store.train.tokens:
        raise Refused(
            f"--store is {address}, which holds {'no text' if store.kind == TEXT else 'examples'}: "
            "a baseline reads running text; give a store that data_pipeline.build wrote from text"
        )
    return store


def cut_documents(split: Split, longest: int) -> EncodedRows:
    """Cut each document into rows of `longest` tokens; the last row of a document may be shorter.

    Rows have no [CLS] and no [SEP].
    """
    bounds_D = np.asarray(split.sentence_offsets)[split.document_offsets]
    rows_D = -(-np.diff(bounds_D) // longest)
    first_D = np.cumsum(rows_D) - rows_D  # number of a document's first row
    document_R = np.repeat(np.arange(len(rows_D)), rows_D)
    starts_R = bounds_D[document_R] + longest * (np.arange(len(document_R)) - first_D[document_R])
    ids = np.asarray(split.token_ids, np.int32)
    return make_plain_rows(ids, np.append(starts_R, split.tokens))


def frame_rows(rows: EncodedRows, first_id: int, last_id: int) -> EncodedRows:
    """Put the token first_id before each row, and last_id after it."""
    offsets = rows.offsets + 2 * np.arange(len(rows.offsets))
    is_text = np.ones(offsets[-1], bool)
    is_text[offsets[:-1]] = is_text[offsets[1:] - 1] = False
    ids = np.full(offsets[-1], last_id, np.int32)
    ids[offsets[:-1]] = first_id
    ids[is_text] = rows.token_ids
    return make_plain_rows(ids, offsets)


def claim_baseline(
    folder: pathlib.Path, kind: str, settings: Any, store: Store, **others: Any
) -> None:
    """Claim a folder with claim_folder for this training, and copy the vocabulary into it.

    `others` describe all else that it reads.
    """
    words = store.manifest["vocabulary"]
    record = {
        "kind": kind,
        "settings": dataclasses.asdict(settings),
        "store": store.digest,
        **{name: words[name] for name in ("lowercase", RECORDED) if name in words},
        "vocabulary": store.vocab_path.name,
        **others,
    }
    claim_folder(folder, RECORD, record, "baseline")
    write_file(folder / store.vocab_path.name, small_files.read_bytes(store.vocab_path))


def digest_arrays(tree: Any) -> str:
    """Return the SHA-256 of the arrays of a tree, in the order of their paths."""
    sha256 = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        sha256.update(np.ascontiguousarray(leaf).data)
    return sha256.hexdigest()


def build_optimizer(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """Build Adam with a rate that decays linearly to 0 and clipped gradients."""
    rate = optax.linear_schedule(learning_rate, 0.0, steps)
    return optax.chain(optax.clip_by_global_norm(_CLIP_NORM), optax.adam(rate))


def compile_step(
    mean_loss: Callable[..., jax.Array], tx: optax.GradientTransformation
) -> Callable[..., tuple[State, jax.Array]]:
    """Compile a step on mean_loss(params, *inputs): (state, *inputs) -> (next state, loss).

    A state is (parameters, the optimizer's state).
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: State, *inputs: Any) -> tuple[State, jax.Array]:
        params, opt_state = state
        loss, grads = jax.value_and_grad(mean_loss)(params, *inputs)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return step


def read_baseline(address: str, kind: str) -> tuple[pathlib.Path, Any, Vocabulary]:
    """Read the settings and the vocabulary of a finished baseline.

    Raises:
      Refused: the folder holds none of this kind, or a setting is out of its range.
    """
    folder = pathlib.Path(address)
    path = folder / RECORD
    if read_summary(folder) is None or not path.exists():
        raise Refused(
            f"--from is {address}, which holds no finished baseline; train one with: python -m "
            f"bert_jax.baseline {kind} --store=STORE --workdir={address}"
        )
    record = small_files.read_object(path, folder)
    if record.get("kind") != kind:
        raise Refused(
            f"--from is {address}, which holds {record.get('kind')!r:.40}; give the folder of a "
            f"{kind}"
        )
    name = small_files.field(record, "vocabulary", str, path)
    small_files.field(record, "lowercase", bool, path)
    vocabulary = load_recorded(small_files.join_inside(folder, name), record)
    content = small_files.field(record, "settings", dict, path)
    settings = small_files.parse_record(content, BASELINES[kind], path)
    check_fields(settings, f"{path}: settings")
    return folder, settings, vocabulary


@dataclasses.dataclass(frozen=True)
class Steps:
    """Hold the initial state of a training, its number of steps and the function of a step."""

    initial: State
    count: int
    # (state, step from 0 on) -> the state after it and its loss
    advance: Callable[[State, int], tuple[State, jax.Array]]


def init_state(params: Any, settings: BiLM | CoVe) -> State:
    """Return the state that state.npz keeps: parameters and Adam's moments."""
    return params, build_optimizer(settings.learning_rate, settings.steps).init(params)


def build_steps(
    params: Any,
    mean_loss: Callable[..., jax.Array],
    make_batch: Callable[[int], Any],
    settings: BiLM | CoVe,
) -> Steps:
    """Build steps of Adam on mean_loss(params, batch, key), each with the batch of its number."""
    # The weights use the key of the seed itself.
    key = jax.random.fold_in(jax.random.key(settings.seed), 1)
    update = compile_step(mean_loss, build_optimizer(settings.learning_rate, settings.steps))

    def advance(state: State, step: int) -> tuple[State, jax.Array]:
        return update(state, make_batch(step), jax.random.fold_in(key, step))

    return Steps(init_state(params, settings), settings.steps, advance)


def measure_steps(steps: Steps, secs: float) -> float:
    """Measure steps for about `secs` seconds, and return the seconds of the whole training.

    The first two steps compile and are not counted.
    """
    state = steps.initial
    counted, began = -2, time.monotonic()
    while counted < _MIN_STEPS or time.monotonic() - began < secs:
        if counted == 0:
            began = time.monotonic()
        state, loss = steps.advance(state, (counted + 2) % steps.count)
        loss.block_until_ready()
        counted += 1
    return (time.monotonic() - began) / counted * steps.count


def run_steps(folder: pathlib.Path, training: Steps, screen: Screen) -> tuple[State, float]:
    """Run the steps that follow the saved state; save the state every minute and at the end.

    Return the state after the last step, and the seconds of all steps.

    Raises:
      DamagedFile: the folder's state is damaged.
      FloatingPointError: a loss is not finite; the last saved state is kept.
    """
    steps = training.count
    state, first, secs_before = _load(folder / STATE, training.initial)
    loss = jax.numpy.zeros(())
    started = saved = time.monotonic()
    if first:
        screen.print(f"resumes after step {first:,} of {steps:,}")
    with screen.spinning("compiling") as show:
        for step in range(first, steps):
            before = loss
            state, loss = training.advance(state, step)
            before.block_until_ready()  # the next step is prepared while one runs
            done = step + 1
            show(f"step {done:,} of {steps:,}")
            is_line = done * _LINES // steps > step * _LINES // steps
            is_save = done == steps or time.monotonic() - saved > _SAVE_SECS
            if not is_line and not is_save:
                continue
            value, secs = float(loss), secs_before + time.monotonic() - started
            if not np.isfinite(value):
                raise FloatingPointError(
                    f"the loss of step {done:,} is {value}; start again with a smaller "
                    "--learning_rate and a new --workdir"
                )
            if is_line:
                screen.print(f"step {done:>9,} of {steps:,}  loss {value:.4f}")
            if is_save:
                _save(folder / STATE, state, done, secs)
                saved = time.monotonic()
    return state, secs_before + time.monotonic() - started


def read_state(folder: pathlib.Path, like: State) -> State:
    """Read the state of a finished baseline; `like` has its tree, shapes and dtypes.

    Raises:
      DamagedFile: the state is missing or damaged.
    """
    path = folder / STATE
    if not path.exists():
        raise DamagedFile(f"{path} is missing; delete {SUMMARY} too to train from step 0")
    return _load(path, like)[0]


def _save(path: pathlib.Path, state: State, step: int, secs: float) -> None:
    leaves = enumerate(jax.tree.leaves(state))
    arrays = {f"{_LEAF}{number}": np.asarray(leaf) for number, leaf in leaves}
    arrays |= {_STEP: np.array(step), _SECS: np.array(secs)}
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    write_file(path, content.getvalue())


def _load(path: pathlib.Path, like: State) -> tuple[State, int, float]:
    """Return the saved state, its step and seconds; without one, `like`, 0 and 0.0."""
    if not path.exists():
        return like, 0, 0.0
    leaves, tree = jax.tree.flatten(like)
    try:
        with small_files.open_regular(path, path.parent) as file, np.load(file) as arrays:
            if any(each.compress_type for each in arrays.zip.infolist()):
                raise ValueError("its arrays are packed, and might fill the memory")
            read = [arrays[f"{_LEAF}{number}"] for number in range(len(leaves))]
            step, secs = int(arrays[_STEP]), float(arrays[_SECS])
        for array, leaf in zip(read, leaves, strict=True):
            if array.shape != leaf.shape or array.dtype != leaf.dtype:
                raise ValueError(f"no array has {array.dtype}{list(array.shape)}")
    except OSError:
        raise
    except Exception as error:  # the class depends on the damage, as in a store's arrays
        raise DamagedFile(
            f"{path} is damaged ({error!s:.120}); delete it, and {SUMMARY} next to it, to train "
            "from step 0"
        ) from error
    return jax.tree.unflatten(tree, map(jax.numpy.asarray, read)), step, secs


def write_summary(
    folder: pathlib.Path, kind: str, settings: Any, steps: int, secs: float, **numbers: Any
) -> None:
    """Write WORKDIR/summary.json, which marks a baseline as finished; `numbers` are its results."""
    known = {"kind": kind, "seed": settings.seed, "steps": steps, "seconds": round(secs, 1)}
    write_json(folder / SUMMARY, known | numbers)


def average_losses(
    sum_losses: Callable[[np.ndarray], tuple[jax.Array, jax.Array]], rows_N: np.ndarray, size: int
) -> np.ndarray | None:
    """Average losses per token over rows, computed in batches of `size`; None without a token.

    sum_losses(index_B) returns the summed losses of the rows with these numbers and their count of
    tokens; row -1 has no token.
    """
    total, count = np.zeros(()), 0.0
    for start in range(0, len(rows_N), size):
        index_B = rows_N[start : start + size]
        index_B = np.pad(index_B, (0, size - len(index_B)), constant_values=-1)
        losses, tokens = sum_losses(index_B)
        total, count = total + np.asarray(losses, np.float64), count + float(tokens)
    return total / count if count else None


def read_summary(folder: pathlib.Path) -> dict[str, Any] | None:
    """Read the summary of a finished baseline; None if it is not finished."""
    path = folder / SUMMARY
    return small_files.read_object(path, folder) if path.exists() else None
