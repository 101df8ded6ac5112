"""Mean vectors of the same sentences by both sides, in turn: how far apart, and how long."""

import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks.parity_runs.pairs import FOLDERS, HEADER_LINES, Pairs
from benchmarks.step.side_by_side import ratio_of
from benchmarks.step.workers import Worker

BATCH_SIZE = 32
MAX_LENGTH = 256  # what sentence_bert_config.json beside these weights says
VECTOR_TOLERANCE = 1e-4
TEXT_COLUMNS = {"cola": 3, "sst2": 0, "rte": 1}  # of a task's files


def sentences_of(data_dir: pathlib.Path, task: str, most: int) -> list[str]:
    """Read the first texts of a task's training file.

    Raises:
      ValueError: it has fewer.
    """
    column, header_lines = TEXT_COLUMNS[task], HEADER_LINES[task]
    path = data_dir / FOLDERS[task] / "train.tsv"
    lines = path.read_text(encoding="utf-8").split("\n")[header_lines : header_lines + most]
    sentences = [line.split("\t")[column].strip() for line in lines if line]
    if len(sentences) < most:
        raise ValueError(f"{path} has {len(sentences):,} texts; --sentences asks for {most:,}")
    return sentences


def compare(pairs: Pairs, task: str, sentences: int, rounds: int) -> dict[str, Any]:
    """Seconds of each side in each round, tokenising included, and the first turn, which compiles.

    Raises:
      ValueError: their vectors differ by more than rounding.
      RuntimeError: a side ended.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        texts = folder / "sentences.txt"
        sentences_read = sentences_of(pairs.data_dir, task, sentences)
        texts.write_text("\n".join(sentences_read) + "\n", encoding="utf-8")
        theirs = Worker(pairs.python, "benchmarks.parity_runs.hf_finetune_worker")
        ours = Worker(
            pathlib.Path(sys.executable), "benchmarks.parity_runs.bert_jax_vectors_worker"
        )
        try:
            theirs.ask("open_encoder", model_dir=str(pairs.model_dir))
            ours.ask("open_encoder", checkpoint=f"hf:{pairs.model_dir}")
            sides = {"hf": theirs, "our": ours}

            def turn() -> dict[str, float]:
                done = {}
                for side, worker in sides.items():
                    timed = worker.ask(
                        "vectors",
                        sentences_file=str(texts),
                        batch_size=BATCH_SIZE,
                        max_length=MAX_LENGTH,
                        out_file=str(folder / f"{side}.npy"),
                    )
                    done |= {f"{side}_{key}": secs for key, secs in timed.items()}
                return done

            first = turn()
            timed = [turn() for _ in range(rounds)]
        finally:
            theirs.close()
            ours.close()
        vectors = {side: np.load(folder / f"{side}.npy") for side in sides}
    apart = float(np.abs(vectors["our"] - vectors["hf"]).max())
    if not apart <= VECTOR_TOLERANCE:  # a NaN is within no tolerance
        raise ValueError(f"vectors of the same sentences differ by {apart:.1e}")
    return {
        "task": task,
        "sentences": sentences,
        "largest_difference": apart,
        "first_turn": first,
        "rounds": timed,
        "ratio": ratio_of(timed, "secs"),
        "cpu_ratio": ratio_of(timed, "cpu_secs"),
    }
