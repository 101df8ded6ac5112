"""Make a store from TFRecords with Google BERT's features.

Google's create_pretraining_data.py writes such records.
"""

import contextlib
import dataclasses
import importlib.metadata
import pathlib
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import rich.console

from data_pipeline.cli.flags import Command, flag
from data_pipeline.cli.main import find_python, run_main
from data_pipeline.cli.terminal import make_console, print_command, print_paragraph
from data_pipeline.corpus.selection import choose_heldout
from data_pipeline.io import Refused
from data_pipeline.io.atomic import Destination, check_new_folder, new_folder
from data_pipeline.report.build import choose_workdir, describe_file_count
from data_pipeline.report.progress import progress_bar
from data_pipeline.spec.schema import RowShape, restore_ids
from data_pipeline.store import EXAMPLES, FORMAT, HELDOUT, MANIFEST, TRAIN, check_is_local
from data_pipeline.store.reader import SPLIT_ROWS
from data_pipeline.store.tfrecord import (
    check_examples,
    find_record_files,
    hash_first_segments,
    read_examples,
)
from data_pipeline.store.writer import ArrayFile, ExampleWriter, make_manifest, write_manifest
from data_pipeline.vocab import Vocabulary, load_vocabulary
from data_pipeline.vocab.sentencepiece_model import ALBERT, NO_RULES, RULES, XLNET
from data_pipeline.vocab.tokenizer_json import write_tokenizer_json

EXAMPLE = (
    "python -m data_pipeline.import_tfrecord --input='records/*.tfrecord*' --vocab=vocab.txt "
    "--output=stores/records"
)
_HOLDOUT = 0.01


@dataclasses.dataclass(frozen=True)
class ImportFlags:
    """Declare the flags."""

    input: str = flag(
        "",
        "TFRecord files, plain or gzipped; their examples may have several lengths, such as 128 "
        "and 512",
        metavar="GLOB[,GLOB]",
        is_required=True,
    )
    heldout_input: str = flag(
        "",
        "files of examples to evaluate on; without it, --holdout of --input is held out",
        metavar="GLOB[,GLOB]",
    )
    vocab: str = flag(
        "", "the vocab.txt or *.model that the ids were made with", metavar="FILE", is_required=True
    )
    lowercase: bool = flag(True, "the ids were made from lowercased text")
    sentencepiece_rules: str = flag(
        NO_RULES,
        "how the text for a SentencePiece *.model in --vocab was prepared: as for the published "
        f"{ALBERT} (lowercased) or {XLNET}, both without accents and extra spaces",
        choices=RULES,
    )
    output: str = flag("", "the folder of the store to make", metavar="DIR", is_required=True)
    holdout: float | None = flag(
        None,
        "share of the examples to hold out, chosen by the text of their first segment; "
        f"{_HOLDOUT} if not set",
        above=0.0,
        maximum=0.5,
    )

    def __post_init__(self) -> None:
        for name in ("input", "heldout_input", "vocab", "output"):
            for path in getattr(self, name).split(","):
                check_is_local(f"--{name}", path.strip())
        if self.heldout_input and self.holdout is not None:
            raise Refused(
                f"--holdout is {self.holdout} and --heldout_input is {self.heldout_input}; "
                "held-out examples are a share of --input, or all of --heldout_input: "
                "leave one of them out"
            )

    @property
    def heldout_share(self) -> float:
        """Return the share of --input to hold out."""
        if self.heldout_input:
            return 0.0
        return _HOLDOUT if self.holdout is None else self.holdout


COMMAND = Command("data_pipeline.import_tfrecord", __doc__, ImportFlags, EXAMPLE)

_BLOCK_ROWS = 1 << 14
_HELD_OUT, _TRAINED_ON = 0, 1  # marks of examples whose split follows from their file


def main(argv: Sequence[str] | None = None) -> int:
    """Import the records that the flags name; return the exit code."""
    console = make_console(highlight=False)
    return run_main(
        COMMAND, lambda _, flags: import_records(flags, console), argv, hides_libraries=True
    )


def import_records(flags: ImportFlags, console: rich.console.Console) -> None:
    """Make the store that the flags describe, or raise and leave --output as it was.

    Raises:
      Refused, OSError: the records, the vocabulary or the output are wrong.
    """
    output = pathlib.Path(flags.output)
    destination = Destination(output, MANIFEST, FORMAT)
    check_new_folder(destination)
    vocabulary = load_vocabulary(flags.vocab, flags.lowercase, rules=flags.sentencepiece_rules)
    files = dict.fromkeys(find_record_files("--input", flags.input), TRAIN)
    if flags.heldout_input:
        heldout = find_record_files("--heldout_input", flags.heldout_input)
        # A file may be given by a relative path in one flag and by an absolute one in the other.
        if both := {path.resolve() for path in files} & {path.resolve() for path in heldout}:
            raise Refused(f"--heldout_input has {min(both)}, which --input has too; leave it out")
        files |= dict.fromkeys(heldout, HELDOUT)
    with (
        new_folder(destination) as folder,
        contextlib.closing(_Import(flags, vocabulary, folder)) as importing,
    ):
        (folder / vocabulary.file_name).write_bytes(vocabulary.file_bytes)
        write_tokenizer_json(vocabulary, folder)
        label = f"reading {describe_file_count(len(files))}"
        with progress_bar(console, label, sum(path.stat().st_size for path in files)) as advance:
            for path, split in files.items():
                importing.read(path, split, advance)
        if not importing.examples:
            raise Refused(
                f"--input is {flags.input}, which holds no record; give TFRecord files with "
                "examples, as create_pretraining_data.py writes them"
            )
        with progress_bar(console, "writing the splits", importing.examples) as advance:
            importing.write_splits(advance)
        manifest = importing.manifest()
        write_manifest(folder, manifest)
    _report(console, output, manifest)


class _Import:
    """Import examples: `read` every file, then `write_splits`, then `manifest`."""

    def __init__(self, flags: ImportFlags, vocabulary: Vocabulary, folder: pathlib.Path) -> None:
        self._flags = flags
        self._vocabulary = vocabulary
        self._folder = folder
        self._writers: dict[int, ExampleWriter] = {}  # keys: the lengths of examples
        self._sources: list[dict[str, Any]] = []
        self._lengths: dict[str, dict[str, int]] = {}
        self._counts_V = {split: np.zeros(vocabulary.size, np.int64) for split in (TRAIN, HELDOUT)}

    @property
    def examples(self) -> int:
        return sum(source["examples"] for source in self._sources)

    def read(self, path: pathlib.Path, split: str, advance: Callable[[int], None]) -> None:
        """Add the examples of a file, each with a mark that decides its split."""
        done = 0
        for shape, batch in read_examples(path, advance):
            check_examples(path, batch, shape, self._vocabulary, done)
            if self._flags.heldout_input:
                side = _HELD_OUT if split == HELDOUT else _TRAINED_ON
                marks = np.full(len(batch["input_ids"]), side, np.uint64)
            else:
                marks = hash_first_segments(batch)
            self._writer(path, shape).append(batch, marks)
            done += len(marks)
        self._sources.append(
            {"path": str(path), "bytes": path.stat().st_size, "examples": done, "split": split}
        )

    def _writer(self, path: pathlib.Path, shape: RowShape) -> ExampleWriter:
        writer = self._writers.get(shape.seq_len)
        if writer is None:
            directory = self._folder / EXAMPLES / str(shape.seq_len)
            writer = ExampleWriter(directory, shape, self._vocabulary.size)
            self._writers[shape.seq_len] = writer
        if writer.shape != shape:
            raise Refused(
                f"{path} has {shape.predictions} predictions per example, files before it of the "
                f"same {shape.seq_len} tokens have {writer.shape.predictions}; import them into "
                "stores of their own"
            )
        return writer

    def close(self) -> None:
        """Close the files of examples, whether all were read or not."""
        for writer in self._writers.values():
            writer.close()

    def write_splits(self, advance: Callable[[int], None]) -> None:
        """Write which rows each split has, and count its tokens."""
        self.close()
        for seq_len, writer in sorted(self._writers.items()):
            batch, marks = writer.maps()
            is_heldout = self._choice(seq_len, marks)
            files = {
                split: ArrayFile(writer.directory / f"{name}.npy", np.dtype(np.int64))
                for split, name in SPLIT_ROWS.items()
            }
            for start in range(0, len(marks), _BLOCK_ROWS):
                block = {name: array[start : start + _BLOCK_ROWS] for name, array in batch.items()}
                is_heldout_B = is_heldout(marks[start : start + _BLOCK_ROWS])
                for split, members in ((TRAIN, ~is_heldout_B), (HELDOUT, is_heldout_B)):
                    files[split].append(start + np.flatnonzero(members))
                    taken = {name: array[members] for name, array in block.items()}
                    self._counts_V[split] += self._token_counts(taken)
                advance(len(is_heldout_B))
            for file in files.values():
                file.close()
            self._lengths[str(seq_len)] = {
                "max_predictions_per_seq": writer.shape.predictions,
                **{split: file.size for split, file in files.items()},
                "random_next": int(np.count_nonzero(batch["next_sentence_labels"])),
            }
            writer.forget_marks()

    def _choice(self, seq_len: int, marks: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        if not marks.min() < marks.max():
            raise Refused(
                f"the {len(marks)} examples of {seq_len} tokens are all of one split, or begin "
                "with the same text, so none can be held out while others are trained on; give "
                "more files, or others as --heldout_input"
            )
        if self._flags.heldout_input:
            return lambda block: block == _HELD_OUT
        return choose_heldout(marks, self._flags.heldout_share)

    def _token_counts(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        """Count each id in the text of examples, special tokens excluded."""
        ids = restore_ids(batch)[batch["input_mask"] != 0]
        counts_V = np.bincount(ids, minlength=self._vocabulary.size)
        for name in ("pad", "cls", "sep"):
            counts_V[self._vocabulary.special_ids[name]] = 0
        return counts_V

    def manifest(self) -> dict[str, Any]:
        """Write the counts of tokens and return the content of manifest.json."""
        vocabulary = self._vocabulary
        splits = {}
        for split, counts_V in self._counts_V.items():
            (self._folder / split).mkdir()
            np.save(self._folder / split / "token_counts.npy", counts_V)
            splits[split] = {
                "examples": sum(length[split] for length in self._lengths.values()),
                "tokens": int(counts_V.sum()),
                "unknown_tokens": int(counts_V[vocabulary.special_ids["unk"]]),
            }
        content = {
            "kind": EXAMPLES,
            "examples": self._lengths,
            "splits": splits,
            "holdout": self._flags.heldout_share,
            "versions": {"numpy": importlib.metadata.version("numpy")},
            "sources": self._sources,
        }
        return make_manifest(self._folder, vocabulary, content)


def _report(console: rich.console.Console, output: pathlib.Path, manifest: dict[str, Any]) -> None:
    for seq_len, length in manifest["examples"].items():
        console.print(
            f"{length[TRAIN]:,} examples of {seq_len} tokens and "
            f"{length['max_predictions_per_seq']} predictions, {length[HELDOUT]:,} more held out"
        )
        if not length["random_next"]:
            print_paragraph(
                console,
                f"! every next_sentence_labels of the {seq_len} is 0: these examples have no "
                "next-sentence task; train with --config.objective=mlm.",
                "yellow",
            )
    console.print("\n  [dim]next, with phases of these sizes[/]")
    print_command(
        console,
        f"{find_python()} -m bert_jax.train --config=configs/base.py "
        f"--config.data.store={shlex.quote(str(output))} "
        f"--workdir={choose_workdir(output)}",
    )


if __name__ == "__main__":
    sys.exit(main())
