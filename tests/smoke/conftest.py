"""Make the inputs of the commands: a run of the train command, and a small checkpoint."""

import gzip

import pytest

from tests.bert_jax import small_checkpoints
from tests.faults.runs import ONE_PHASE

LINES = ["a cat sees", "", "a dog sees a cat . ||| a cat", "dogs " * 30]
TAGGED = "a O\ncat B-PET\nsees O\n\ndog B-PET\nsees O\na O\ncat B-PET\n"


@pytest.fixture(scope="session")
def trained(forked, tiny_store, tmp_path_factory):
    """Train a run to its end, with checkpoints of steps 20 and 40."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    flags = [*ONE_PHASE, "--config.checkpoint.every_steps=20"]
    forked("bert_jax.train", *flags, f"--config.data.store={tiny_store}", f"--workdir={folder}")
    return folder


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """Write a small checkpoint in Hugging Face's format, one without heads, and small files."""
    folder = tmp_path_factory.mktemp("small")
    small_checkpoints.write(folder / "checkpoint", small_checkpoints.tensors())
    small_checkpoints.write(folder / "bare", small_checkpoints.tensors(has_heads=False))
    (folder / "in.txt").write_text("\n".join(LINES) + "\n")
    (folder / "in.txt.gz").write_bytes(gzip.compress((folder / "in.txt").read_bytes()))
    (folder / "latin").write_bytes(b"caf\n\xe9\n")
    (folder / "words.txt").write_text("a cat sees a dog .\n")
    for split in ("train", "dev", "test"):
        (folder / f"{split}.txt").write_text(TAGGED)
        rows = [f"the cat sees {'a dog' if i % 2 else 'it'}\t{i % 2}" for i in range(40)]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tis_long", *rows]) + "\n")
    return folder
