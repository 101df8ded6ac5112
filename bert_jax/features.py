"""Write the vectors of texts from a trained model.

npz: `vectors` float32[T,D] of all T tokens, line after line, [T,K,D] for a list or range of K
layers; `tokens` their T pieces; `offsets` int64[N+1]: line i has vectors[offsets[i]:offsets[i+1]],
[CLS] and [SEP] included. Pooled: `vectors` alone, float32[N,D] or [N,K,D]. Parquet has a row per
line: line, tokens, vectors, or line, vector. JSON lines have Google's names.

Every line gives a row; an empty line is [CLS] [SEP]. Text is streamed: memory holds a few hundred
megabytes of vectors at most.
"""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence

from bert_jax.runtime import cli
from data_pipeline.cli.flags import Command, flag


@dataclasses.dataclass(frozen=True)
class FeaturesFlags:
    """Declare the flags."""

    checkpoint: str = flag(
        "", "workdir of a run, hf:DIR or google:PREFIX", metavar="CK", is_required=True
    )
    input: str = flag(
        "",
        "text, one sentence or A ||| B per line; plain or compressed; - for stdin",
        metavar="FILE",
        is_required=True,
    )
    output: str = flag("", "new file: .npz, .parquet or .jsonl", metavar="FILE", is_required=True)
    layers: str = flag(
        "-1",
        "layers, indexed as in Python: -1 is the last, 0 the embeddings, -4: the last four, -2,-1 "
        "a list",
    )
    pool: str = flag(
        "", "one vector per line: [CLS]'s, or the mean of all", choices=("", "cls", "mean")
    )
    normalize: bool = flag(False, "divide each pooled vector by its length")
    max_seq_length: int = flag(
        0, "truncate lines to N tokens, [CLS] and [SEP] included; 0: to the model's positions"
    )
    windows: int = flag(
        0,
        "slide a window over a line longer than a row, N tokens at a time, and join the vectors; "
        "0 truncates the line",
        minimum=0,
    )
    batch_size: int = flag(32, "lines per batch", minimum=1)
    int8: bool = cli.int8_flag()


COMMAND = Command(
    "bert_jax.features",
    __doc__,
    FeaturesFlags,
    "python -m bert_jax.features --checkpoint=runs/base --input=sentences.txt "
    "--output=vectors.npz --pool=mean",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

from bert_jax.inference import batches, sentence_modules, vector_files
from bert_jax.inference.hidden_states import (
    CLS,
    Extraction,
    Layers,
    choose_layers,
    compile_vectors,
    compute_groups,
)
from bert_jax.interop import load
from bert_jax.interop.pretrained import Pretrained, place_model, refuse_causal
from bert_jax.logging.console import Screen
from bert_jax.model.bert import Heads
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io import Refused
from data_pipeline.io.atomic import check_new_file, new_file
from data_pipeline.labeled.lines import LineCounts, check_lines, group_rows, open_lines

_GROUP_BYTES = 256 << 20  # vectors are written once so many bytes are in memory
_MAX_GROUP_TOKENS = 1 << 18  # pooled vectors are small, but their rows take memory too


def _main(log: LibraryLog, flags: FeaturesFlags) -> int:
    with cli.preparing():
        output = pathlib.Path(flags.output)
        kind = vector_files.choose_format(output)
        check_new_file(output)
        check_lines(flags.input, "--input")
        if flags.normalize and not flags.pool:
            raise Refused("--normalize is for pooled vectors; give --pool=mean or cls too")
        log.hold()
        checkpoint = load.load(flags.checkpoint)
        if flags.pool == CLS:
            refuse_causal(checkpoint, "so its [CLS] sees no other token: give --pool=mean")
        layers = choose_layers(flags.layers, checkpoint.config.num_hidden_layers)
        most = batches.choose_length(
            flags.max_seq_length, checkpoint.config.max_position_embeddings
        )
        extraction = Extraction(
            layers, flags.pool, flags.normalize, most, flags.windows, flags.batch_size
        )
        note = sentence_modules.describe_differences(flags.checkpoint, extraction)
    return _extract(flags, checkpoint, extraction, kind, note)


def _extract(
    flags: FeaturesFlags, checkpoint: Pretrained, extraction: Extraction, kind: str, note: str
) -> int:
    output = pathlib.Path(flags.output)
    screen = Screen(is_writer=True)
    counts = LineCounts()
    started = time.monotonic()
    layers = extraction.layers
    vectors_bytes = 4 * len(layers.numbers) * checkpoint.config.hidden_size
    most_tokens = min(_GROUP_BYTES // vectors_bytes, _MAX_GROUP_TOKENS)
    pieces = checkpoint.vocabulary.pieces()
    groups = group_rows(
        open_lines(flags.input),
        checkpoint.vocabulary,
        extraction.max_seq_length,
        most_tokens,
        counts,
        keeps_long=flags.windows > 0,
        pair_truncation=checkpoint.pair_truncation,
    )
    tokens = 0
    unit = "windows" if flags.windows else "lines"
    with (
        screen.spinning("compiling") as show,
        new_file(output) as unfinished,
        vector_files.open_writer(unfinished, kind, pieces, layers, bool(flags.pool)) as write,
    ):
        model = place_model(checkpoint, Heads(mlm=False, nsp=False), is_int8=flags.int8)
        step = compile_vectors(model, extraction)

        def show_count(done: int) -> None:
            show(f"{done:,} {unit} have their vectors")

        try:
            for group in compute_groups(step, model, groups, extraction, show_count):
                write(group)
                tokens += len(group.rows.token_ids)
                del group  # frees its vectors before the next are computed
        except Refused as error:
            raise Refused(f"{error}; nothing was written") from error
        if not counts.lines:
            raise Refused(f"--input is {flags.input}, which holds no line: nothing was written")
        secs = time.monotonic() - started
    summary = _make_summary(flags, counts, tokens, layers, checkpoint, secs)
    summary += [("note", note)] * bool(note)
    screen.table(f"wrote {output}", summary)
    return 0


def _make_summary(
    flags: FeaturesFlags,
    counts: LineCounts,
    tokens: int,
    layers: Layers,
    checkpoint: Pretrained,
    secs: float,
) -> list[tuple[str, str]]:
    kind = f"{flags.pool} of a line" if flags.pool else "token vectors"
    kind += ", of length 1" if flags.normalize else ""
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
        ("time", f"{secs:.1f} s, {counts.lines / secs:,.1f} lines per second with compiling"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was written", argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
