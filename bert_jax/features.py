"""Write vectors of texts: python -m bert_jax.features --checkpoint=CK --input=TEXT --output=OUT.npz

    --checkpoint=CK    hf:DIR, google:PREFIX or orbax:WORKDIR
    --input=TEXT       a sentence a line, or a pair as A ||| B; plain or compressed; - for stdin
    --output=OUT       .npz, .parquet, or .jsonl with Google's names; or --format names it
    --layers=-1        the last layer; 0 the embeddings; -4: the last four; -2,-1 a list
    --pool=mean        one vector a line: of [CLS] (cls), or the mean of all its tokens' (mean);
                       --normalize=true divides it by its length
    --windows=128      longer lines than a row in windows, 128 tokens apart, whose vectors are
                       joined; without it they are cut

npz: `vectors` float32[T,D] of all T tokens, line after line, [T,K,D] for a list or range of K
layers; `tokens` their T pieces; `offsets` int64[N+1]: line i has vectors[offsets[i]:offsets[i+1]],
[CLS] and [SEP] among them. Pooled: `vectors` alone, float32[N,D] or [N,K,D]. Parquet has a row a
line: line, tokens, vectors, or line, vector.

Every line gives a row, an empty one [CLS] [SEP]. The text streams through: memory holds some
hundred megabytes of vectors at most.
"""

import functools
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from absl import flags

from bert_jax.config.vectors import POOLS
from bert_jax.runtime import absl_cli as cli

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "", "hf:DIR, google:PREFIX or orbax:WORKDIR, or the place alone"
)
_INPUT = flags.DEFINE_string("input", "", "text, a sentence or A ||| B a line; - for stdin")
_OUTPUT = flags.DEFINE_string("output", "", "a new file: .npz, .parquet or .jsonl")
_FORMAT = flags.DEFINE_string("format", "", "npz, parquet or jsonl, whatever --output ends in")
_LAYERS = flags.DEFINE_string("layers", "-1", "which layers, as Python indexes a list of them")
_POOL = flags.DEFINE_enum(
    "pool", "", ("", *POOLS), "one vector a line: [CLS]'s, or the mean of all"
)
_NORMALIZE = flags.DEFINE_bool("normalize", False, "divide each pooled vector by its length")
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length", 0, "tokens that a line is cut to, [CLS] and [SEP] too; 0: all positions"
)
_WINDOWS = flags.DEFINE_integer(
    "windows",
    0,
    "distance in tokens of the windows over a line longer than a row; 0 cuts it",
    lower_bound=0,
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "lines in a batch", lower_bound=1)

USAGE = "python -m bert_jax.features --checkpoint=CK --input=TEXT --output=OUT.npz [--layers=-1]"

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax.config.vectors import CLS
from bert_jax.inference import batches, vector_files
from bert_jax.inference.hidden_states import (
    Group,
    Layers,
    choose_layers,
    collect_vectors,
    compute_vectors,
    slide,
)
from bert_jax.interop import load
from bert_jax.interop.pretrained import Pretrained, place_model, refuse_causal
from bert_jax.logging.console import Screen
from bert_jax.model.bert import Heads
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import check_new_file, new_file
from data_pipeline.io.refused import Refused
from data_pipeline.labelled.lines import LineCounts, check_lines, group_rows, open_lines
from data_pipeline.labelled.rows import EncodedRows

_GROUP_BYTES = 256 << 20  # of vectors in memory before they are written
_MAX_GROUP_TOKENS = 1 << 18  # pooled vectors are small, but their rows take memory too


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        cli.refuse_arguments(arguments, USAGE)
        address, text, place = _CHECKPOINT.value, _INPUT.value, _OUTPUT.value
        for name, value in (("checkpoint", address), ("input", text), ("output", place)):
            if not value:
                raise Refused(f"--{name} is missing; {USAGE}")
        output = pathlib.Path(place)
        kind = vector_files.choose_format(output, _FORMAT.value)
        check_new_file(output, "--output")
        check_lines(text, "--input")
        if _NORMALIZE.value and not _POOL.value:
            raise Refused("--normalize is for pooled vectors; give --pool=mean or cls too")
        log.hold()
        checkpoint = load.load(address)
        if _POOL.value == CLS:
            refuse_causal(checkpoint, "so its [CLS] sees no other token: give --pool=mean")
        layers = choose_layers(_LAYERS.value, checkpoint.config.num_hidden_layers)
        positions = checkpoint.config.max_position_embeddings
        most = _MAX_SEQ_LENGTH.value or positions
        if not 3 <= most <= positions:
            raise Refused(
                f"--max_seq_length is {most}; it must be from 3 to {positions}, the positions that "
                "the checkpoint has, or 0 for all of them"
            )
    return _extract(checkpoint, layers, most, output, kind)


def _extract(
    checkpoint: Pretrained, layers: Layers, max_seq_length: int, output: pathlib.Path, kind: str
) -> int:
    screen = Screen(is_writer=True)
    counts = LineCounts()
    started = time.monotonic()
    vectors_bytes = 4 * len(layers.numbers) * checkpoint.config.hidden_size
    most_tokens = min(_GROUP_BYTES // vectors_bytes, _MAX_GROUP_TOKENS)
    pieces = checkpoint.vocabulary.pieces()
    groups = group_rows(
        open_lines(_INPUT.value),
        checkpoint.vocabulary,
        max_seq_length,
        most_tokens,
        counts,
        keeps_long=_WINDOWS.value > 0,
        pair_truncation=checkpoint.pair_truncation,
    )
    tokens = 0
    with (
        screen.spinning("compiling") as show,
        new_file(output) as unfinished,
        vector_files.open_writer(unfinished, kind, pieces, layers, bool(_POOL.value)) as write,
    ):
        for group in _compute_groups(groups, checkpoint, layers, max_seq_length, show):
            write(group)
            tokens += len(group.rows.token_ids)
            del group  # its vectors, before those of the next are computed
        if not counts.lines:
            raise Refused(f"--input is {_INPUT.value}, which holds no line: nothing was written")
        secs = time.monotonic() - started
    screen.table(f"wrote {output}", _make_summary(counts, tokens, layers, checkpoint, secs))
    return 0


def _compute_groups(
    groups: Iterator[EncodedRows],
    checkpoint: Pretrained,
    layers: Layers,
    max_seq_length: int,
    show: Callable[[str], None],
) -> Iterator[Group]:
    """Yield the groups with their vectors, computed on all devices."""
    model = place_model(checkpoint, Heads(mlm=False, nsp=False))
    compute = functools.partial(
        compute_vectors, layers=layers, pool=_POOL.value, normalize=_NORMALIZE.value
    )
    step = batches.compile_step(model.model, compute)
    first_line = done = 0

    def show_count(results: batches.Results) -> batches.Results:
        nonlocal done
        for index_B, outputs in results:
            yield index_B, outputs
            done += len(index_B)
            show(f"{done:,} {'windows' if _WINDOWS.value else 'lines'} have their vectors")

    while True:
        try:
            rows = next(groups, None)
        except Refused as error:
            raise Refused(f"{error}; nothing was written") from error
        if rows is None:
            return
        windows = slide(rows, max_seq_length, _WINDOWS.value, checkpoint.vocabulary.template)
        results = batches.run_rows(step, model, windows.rows, _BATCH_SIZE.value)
        # No name holds the vectors: they end before those of the next group are computed.
        yield Group(
            first_line, rows, collect_vectors(show_count(results), windows, bool(_POOL.value))
        )
        first_line += rows.examples


def _make_summary(
    counts: LineCounts, tokens: int, layers: Layers, checkpoint: Pretrained, secs: float
) -> list[tuple[str, str]]:
    kind = f"{_POOL.value} of a line" if _POOL.value else "token vectors"
    kind += ", of length 1" if _NORMALIZE.value else ""
    numbers = ", ".join(map(str, layers.numbers))
    layer = f"layer {numbers} of {checkpoint.config.num_hidden_layers}"
    lines = [f"{counts.lines:,}"]
    lines += [f"{counts.empty:,} empty"] * bool(counts.empty)
    lines += [f"{counts.without_tokens:,} without a token"] * bool(counts.without_tokens)
    lines += [f"{counts.cut:,} cut to --max_seq_length"] * bool(counts.cut)
    lines += [f"{counts.kept_long:,} in several windows"] * bool(counts.kept_long)
    return [
        ("lines", ", ".join(lines)),
        ("tokens", f"{tokens:,}, [CLS] and [SEP] among them"),
        ("vectors", f"{kind}, {checkpoint.config.hidden_size} wide, {layer}"),
        ("time", f"{secs:.1f} s, {counts.lines / secs:,.0f} lines a second with compiling"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "nothing was written", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
