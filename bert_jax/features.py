"""Vectors of texts: python -m bert_jax.features --checkpoint=CK --input=TEXT --output=OUT.npz

    --checkpoint=CK    hf:DIR, google:PREFIX or orbax:WORKDIR
    --input=TEXT       a sentence a line, or a pair as A ||| B; plain or compressed; - for stdin
    --output=OUT       .npz, .parquet, or .jsonl with Google's names; or --format says which
    --layers=-1        the last layer; 0 the embeddings; -4: the last four; -2,-1 a list
    --pool=mean        one vector a line: of [CLS] (cls), or the mean of all its tokens' (mean);
                       --normalize=true divides it by its length

npz: `vectors` float32[T,D] of all T tokens, line after line, [T,K,D] for a list or range of K
layers; `tokens` their T pieces; `offsets` int64[N+1]: line i has vectors[offsets[i]:offsets[i+1]],
[CLS] and [SEP] among them. Pooled: `vectors` alone, float32[N,D] or [N,K,D]. Parquet has a row a
line: line, tokens, vectors, or line, vector.

Every line gives a row, an empty one [CLS] [SEP]. The text streams through: memory holds some
hundred megabytes of vectors at most.
"""

import functools
import pathlib
import time
from collections.abc import Callable, Iterator

import jax
from absl import flags

from bert_jax import command_line, feature_files, inference, pretrained
from bert_jax import mesh as mesh_lib
from bert_jax.config import MeshConfig
from bert_jax.exit_codes import Refused
from bert_jax.feature_vectors import POOLS, Group, Layers, asked, chosen_layers, in_order
from bert_jax.models import bert
from bert_jax.models.bert import Heads
from bert_jax.pretrained import Pretrained
from bert_jax.screen import Screen
from data_pipeline.files import is_address
from data_pipeline.finetune import EncodedRows
from data_pipeline.library_log import LibraryLog
from data_pipeline.sentence_lines import STDIN, LineCounts, lines_of, row_groups
from data_pipeline.whole_file import check_new, whole_file

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "", "hf:DIR, google:PREFIX or orbax:WORKDIR, or the place alone"
)
_INPUT = flags.DEFINE_string("input", "", "text, a sentence or A ||| B a line; - for stdin")
_OUTPUT = flags.DEFINE_string("output", "", "a new file: .npz, .parquet or .jsonl")
_FORMAT = flags.DEFINE_string("format", "", "npz, parquet or jsonl, whatever --output ends in")
_LAYERS = flags.DEFINE_string("layers", "-1", "which layers, as Python indexes a list of them")
_POOL = flags.DEFINE_string("pool", "", "cls or mean: one vector a line")
_NORMALIZE = flags.DEFINE_bool("normalize", False, "divide each pooled vector by its length")
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length", 0, "tokens that a line is cut to, [CLS] and [SEP] too; 0: all positions"
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "lines in a batch")

USAGE = "python -m bert_jax.features --checkpoint=CK --input=TEXT --output=OUT.npz [--layers=-1]"
_GROUP_BYTES = 256 << 20  # of vectors that wait to be written
_MOST_GROUP_TOKENS = 1 << 18  # pooled vectors are small, and their rows are held too


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    command_line.refuse_arguments(arguments, USAGE)
    address, text, place = _CHECKPOINT.value, _INPUT.value, _OUTPUT.value
    for name, value in (("checkpoint", address), ("input", text), ("output", place)):
        if not value:
            raise ValueError(f"--{name} is missing; {USAGE}")
    output = pathlib.Path(place)
    kind = feature_files.format_of(output, _FORMAT.value)
    check_new(output, "--output")
    if text != STDIN and not is_address(text) and not pathlib.Path(text).is_file():
        raise ValueError(
            f"--input is {text}, which is not a file; give a text file, or - for stdin"
        )
    if _POOL.value not in ("", *POOLS):
        raise ValueError(f"--pool is {_POOL.value!r}; it must be {' or '.join(POOLS)}")
    if _NORMALIZE.value and not _POOL.value:
        raise ValueError("--normalize is for pooled vectors; give --pool=mean or --pool=cls too")
    if _BATCH_SIZE.value < 1:
        raise ValueError(f"--batch_size is {_BATCH_SIZE.value}; it must be 1 or more")
    log.hold()
    checkpoint = pretrained.load(address)
    layers = chosen_layers(_LAYERS.value, checkpoint.config.num_hidden_layers)
    positions = checkpoint.config.max_position_embeddings
    most = _MAX_SEQ_LENGTH.value or positions
    if not 3 <= most <= positions:
        raise ValueError(
            f"--max_seq_length is {most}; it must be from 3 to {positions}, the positions that "
            "the checkpoint has, or 0 for all of them"
        )
    return functools.partial(_extract, checkpoint, layers, most, output, kind)


def _extract(
    checkpoint: Pretrained, layers: Layers, max_seq_length: int, output: pathlib.Path, kind: str
) -> int:
    screen = Screen(is_writer=True)
    counts = LineCounts()
    started = time.monotonic()
    vectors_bytes = 4 * len(layers.numbers) * checkpoint.config.hidden_size
    most_tokens = min(_GROUP_BYTES // vectors_bytes, _MOST_GROUP_TOKENS)
    pieces = checkpoint.vocabulary.pieces()
    groups = row_groups(
        lines_of(_INPUT.value), checkpoint.vocabulary, max_seq_length, most_tokens, counts
    )
    tokens = 0
    with (
        screen.spinning("compiling") as show,
        whole_file(output) as unfinished,
        feature_files.writing(unfinished, kind, pieces, layers, bool(_POOL.value)) as write,
    ):
        for group in _with_vectors(groups, checkpoint, layers, show):
            write(group)
            tokens += len(group.rows.token_ids)
            del group  # its vectors, before those of the next are computed
        if not counts.lines:
            raise Refused(f"--input is {_INPUT.value}, which holds no line: nothing was written")
        secs = time.monotonic() - started
    screen.table(f"wrote {output}", _account(counts, tokens, layers, checkpoint, secs))
    return 0


def _with_vectors(
    groups: Iterator[EncodedRows],
    checkpoint: Pretrained,
    layers: Layers,
    show: Callable[[str], None],
) -> Iterator[Group]:
    """The groups with their vectors, computed on all devices.

    Raises:
      Refused: the text cannot be read further.
    """
    of = mesh_lib.make(MeshConfig(preset="dp"))
    jax.set_mesh(of)
    config = checkpoint.config
    model = bert.build(config, jax.default_backend(), heads=Heads(mlm=False, nsp=False))
    params, _ = pretrained.placed(checkpoint, model, of, seed=0)  # the pooler may be drawn: unread
    step = inference.step(
        model,
        functools.partial(asked, layers=layers, pool=_POOL.value, normalize=_NORMALIZE.value),
    )
    pad_id = checkpoint.vocabulary.special_ids["pad"]
    first_line = 0

    def counted(results: inference.Results) -> inference.Results:
        done = first_line
        for index_B, outputs in results:
            yield index_B, outputs
            done += len(index_B)
            show(f"{done:,} lines have their vectors")

    while True:
        try:
            rows = next(groups, None)
        except ValueError as error:
            raise Refused(f"{error}; nothing was written") from error
        if rows is None:
            return
        results = inference.each_batch(
            step, params, of, rows, _BATCH_SIZE.value, pad_id, config.max_position_embeddings
        )
        yield Group(first_line, rows, in_order(counted(results), rows, bool(_POOL.value)))
        first_line += rows.examples


def _account(
    counts: LineCounts, tokens: int, layers: Layers, checkpoint: Pretrained, secs: float
) -> list[tuple[str, str]]:
    what = f"{_POOL.value} of a line" if _POOL.value else "token vectors"
    if _NORMALIZE.value:
        what += ", of length 1"
    lines = [f"{counts.lines:,}"]
    lines += [f"{counts.empty:,} empty"] * bool(counts.empty)
    lines += [f"{counts.without_tokens:,} without a token"] * bool(counts.without_tokens)
    lines += [f"{counts.cut:,} cut to --max_seq_length"] * bool(counts.cut)
    return [
        ("lines", ", ".join(lines)),
        ("tokens", f"{tokens:,}, [CLS] and [SEP] among them"),
        (
            "vectors",
            f"{what}, {checkpoint.config.hidden_size} wide, layer "
            f"{', '.join(map(str, layers.numbers))} of {checkpoint.config.num_hidden_layers}",
        ),
        ("time", f"{secs:.1f} s, {counts.lines / secs:,.0f} lines a second with compiling"),
    ]


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="nothing was written")


if __name__ == "__main__":
    main()
