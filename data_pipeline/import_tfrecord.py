"""Makes a store of ready-made examples from TFRecords: python -m data_pipeline.import_tfrecord."""

import contextlib
import importlib.metadata
import pathlib
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import rich.console

from data_pipeline import terminal_console
from data_pipeline.build_report import count_of_files, progress_bar
from data_pipeline.example_arrays import FOLDER, SPLIT_ROWS, ExampleWriter, describe_examples
from data_pipeline.exit_code import exit_code_of, on_stderr
from data_pipeline.holdout import choose_heldout
from data_pipeline.import_flags import ImportFlags, parse_flags
from data_pipeline.interpreter import python
from data_pipeline.library_log import LibraryLog
from data_pipeline.record_checks import check_examples
from data_pipeline.schema import RowShape
from data_pipeline.store import EXAMPLES, FORMAT, FORMAT_VERSION, HELDOUT, MANIFEST, TRAIN
from data_pipeline.store_writing import ArrayFile, sha256, store_digest, write_manifest
from data_pipeline.tfrecord import find_record_files, read_examples
from data_pipeline.tokenizer_json import write_tokenizer_json
from data_pipeline.unmasked import first_segment_hashes, unmasked_ids
from data_pipeline.vocab import FILE_NAMES, Vocabulary, load_vocabulary
from data_pipeline.whole_folder import check_output, whole_folder
from data_pipeline.wrapping import print_command, print_paragraph

_BLOCK_ROWS = 1 << 14
_HELD_OUT, _TRAINED_ON = 0, 1  # marks of examples whose file says where they belong


def main(argv: list[str] | None = None, say: Callable[[str], None] = on_stderr) -> int:
    """Import; 0, or 2 after one line that says what is wrong."""
    console = terminal_console.console(highlight=False)
    arguments = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: import_records(parse_flags(arguments), console), say)


def import_records(flags: ImportFlags, console: rich.console.Console) -> None:
    """Make the store that the flags describe, or raise and leave --output as it was.

    Raises:
      ValueError, OSError: what is wrong with the records, the vocabulary or the output.
    """
    check_output(flags.output, MANIFEST)
    vocabulary = load_vocabulary(flags.vocab, flags.lowercase)
    files = dict.fromkeys(find_record_files("--input", flags.input), TRAIN)
    if flags.heldout_input:
        heldout = find_record_files("--heldout_input", flags.heldout_input)
        if both := files.keys() & set(heldout):
            raise ValueError(
                f"--heldout_input has {min(both)}, which --input has too; leave it out"
            )
        files |= dict.fromkeys(heldout, HELDOUT)
    with (
        whole_folder(flags.output, last=MANIFEST) as folder,
        contextlib.closing(_Import(flags, vocabulary, folder)) as importing,
    ):
        (folder / FILE_NAMES[vocabulary.kind]).write_bytes(vocabulary.file_bytes)
        write_tokenizer_json(vocabulary, folder)
        label = f"reading {count_of_files(len(files))}"
        with progress_bar(console, label, sum(path.stat().st_size for path in files)) as advance:
            for path, split in files.items():
                importing.read(path, split, advance)
        with progress_bar(console, "writing the splits", importing.examples) as advance:
            importing.part(advance)
        manifest = importing.manifest()
        write_manifest(folder, manifest)
    _report(console, flags.output, manifest)


class _Import:
    """One import on its way: `read` every file, then `part`, then `manifest`."""

    def __init__(self, flags: ImportFlags, vocabulary: Vocabulary, folder: pathlib.Path) -> None:
        self._flags = flags
        self._vocabulary = vocabulary
        self._folder = folder
        self._writers: dict[int, ExampleWriter] = {}  # by their examples' length
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
                marks = first_segment_hashes(batch)
            self._writer(path, shape).append(batch, marks)
            done += len(marks)
        self._sources.append(
            {"path": str(path), "bytes": path.stat().st_size, "examples": done, "split": split}
        )

    def _writer(self, path: pathlib.Path, shape: RowShape) -> ExampleWriter:
        writer = self._writers.get(shape.seq_len)
        if writer is None:
            directory = self._folder / FOLDER / str(shape.seq_len)
            writer = ExampleWriter(directory, shape, self._vocabulary.size)
            self._writers[shape.seq_len] = writer
        if writer.shape != shape:
            raise ValueError(
                f"{path} has {shape.predictions} predictions an example, files before it of the "
                f"same {shape.seq_len} tokens have {writer.shape.predictions}; import them into "
                "stores of their own"
            )
        return writer

    def close(self) -> None:
        """End the files of examples, whether all were read or not."""
        for writer in self._writers.values():
            writer.close()

    def part(self, advance: Callable[[int], None]) -> None:
        """Write which rows each split has, and count its tokens."""
        self.close()
        for seq_len, writer in sorted(self._writers.items()):
            batch, marks = writer.maps()
            is_heldout = self._choice(seq_len, marks)
            files = {
                split: ArrayFile(writer.directory / f"{name}.npy", np.dtype(np.int64))
                for split, name in SPLIT_ROWS.items()
            }
            for rows, block in _blocks(batch):
                held = is_heldout(marks[rows])
                for split, members in ((TRAIN, ~held), (HELDOUT, held)):
                    files[split].append(rows[members])
                    taken = {name: array[members] for name, array in block.items()}
                    self._counts_V[split] += self._token_counts(taken)
                advance(len(rows))
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
            raise ValueError(
                f"the {len(marks)} examples of {seq_len} tokens are all of one split, or begin "
                "with the same text, so none can be held out while others are trained on; give "
                "more files, or others as --heldout_input"
            )
        if self._flags.heldout_input:
            return lambda block: block == _HELD_OUT
        return choose_heldout(marks, self._flags.holdout)

    def _token_counts(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        """How often each id stands in the text of examples, special pieces not counted."""
        ids = unmasked_ids(batch)[batch["input_mask"] != 0]
        counts_V = np.bincount(ids, minlength=self._vocabulary.size)
        for name in ("pad", "cls", "sep"):
            counts_V[self._vocabulary.special_ids[name]] = 0
        return counts_V

    def manifest(self) -> dict[str, Any]:
        """What manifest.json says; writes the counts of tokens, which it describes."""
        vocabulary = self._vocabulary
        arrays = describe_examples(self._folder)
        unknown_id = vocabulary.special_ids["unk"]
        splits = {}
        for split, counts_V in self._counts_V.items():
            (self._folder / split).mkdir()
            path = self._folder / split / "token_counts.npy"
            np.save(path, counts_V)
            arrays[f"{split}/token_counts.npy"] = {
                "dtype": "int64",
                "size": len(counts_V),
                "sha256": sha256(path),
            }
            splits[split] = {
                "examples": sum(length[split] for length in self._lengths.values()),
                "tokens": int(counts_V.sum()),
                "unknown_tokens": int(counts_V[unknown_id]),
            }
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": EXAMPLES,
            "digest": store_digest(arrays, vocabulary.digest),
            "vocabulary": {
                "kind": vocabulary.kind,
                "file": FILE_NAMES[vocabulary.kind],
                "size": vocabulary.size,
                "lowercase": vocabulary.lowercase,
                "sha256": vocabulary.digest,
                "special_ids": vocabulary.special_ids,
            },
            "examples": self._lengths,
            "splits": splits,
            "holdout": self._flags.holdout,
            "versions": {"numpy": importlib.metadata.version("numpy")},
            "sources": self._sources,
            "arrays": arrays,
        }


def _blocks(
    arrays: dict[str, np.ndarray],
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    rows = len(arrays["input_ids"])
    for start in range(0, rows, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, rows)
        yield (
            np.arange(start, stop, dtype=np.int64),
            {name: array[start:stop] for name, array in arrays.items()},
        )


def _report(console: rich.console.Console, output: pathlib.Path, manifest: dict[str, Any]) -> None:
    for seq_len, length in manifest["examples"].items():
        console.print(
            f"{length[TRAIN]:,} examples of {seq_len} tokens and "
            f"{length['max_predictions_per_seq']} predictions, {length[HELDOUT]:,} more held out"
        )
        if not length["random_next"]:
            print_paragraph(
                console,
                f"! every next_sentence_labels of the {seq_len} is 0: these examples "
                "have no next-sentence task; train with --config.objective=mlm.",
                "yellow",
            )
    console.print("\n  [dim]next, with phases of these sizes[/]")
    print_command(
        console,
        f"{python()} -m bert_jax.train --config=configs/base.py "
        f"--config.data.store={shlex.quote(str(output))} "
        f"--workdir=runs/{shlex.quote(output.name)}",
    )


if __name__ == "__main__":
    with LibraryLog() as log:
        log.hold()  # tensorflow greets
        exit_code = main(say=log.say)
    sys.exit(exit_code)
