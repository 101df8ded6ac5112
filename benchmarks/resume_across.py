"""Show that this version finishes, to the bit, the runs that an earlier commit began.

    git worktree add ../before COMMIT; (cd ../before && make setup)
    (cd ../before && .venv/bin/python -m benchmarks.resume_across make DIR)
    .venv/bin/python -m benchmarks.resume_across check DIR

`make` builds stores with each kind of vocabulary, trains a small model of each family on them:
once to the end, and once killed half way. `check` copies the killed runs, resumes
them with the code of this tree, and compares weights, optimizer, metrics and summary with the run
that the earlier commit finished. DIR is absolute, since runs name their store. --only=WORD takes
the runs whose name has the word.
"""

import argparse
import dataclasses
import pathlib
import shutil
import subprocess
import sys
import time

from bert_jax.verify_resume import compare_runs

DOCUMENTS = 250
KILLED_AFTER = 12  # the step whose checkpoint is whole when the run is killed
TINY = {
    "phases[0].steps": 24,
    "phases[0].batch_size": 16,
    "phases[1].steps": 8,
    "phases[1].batch_size": 16,
    "phases[1].restart_warmup_steps": 2,
    "optim.warmup_steps": 4,
    "checkpoint.every_steps": 6,
    "log_every_steps": 6,
    "eval.every_steps": 12,
    "eval.examples": 64,
    "model.hidden_dropout_prob": 0.1,
    "model.attention_probs_dropout_prob": 0.1,
}
WHOLE_WORDS = "--config.data.masking=whole_word"


@dataclasses.dataclass(frozen=True)
class GoldenRun:
    """Describe a run by its model in configs/quickstart.py, the vocabulary and more flags."""

    model: str
    vocabulary: str = "wordpiece"
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        whole_words = "-whole_words" * (WHOLE_WORDS in self.flags)
        return f"{self.model}-{self.vocabulary}{whole_words}"

    def command(self, home: pathlib.Path, workdir: pathlib.Path) -> list[str]:
        return [
            *("bert_jax.train", f"--config=configs/quickstart.py:model={self.model}"),
            *(f"--config.data.store={home / 'stores' / self.vocabulary}", f"--workdir={workdir}"),
            *(f"--config.{field}={value}" for field, value in TINY.items()),
            *self.flags,
        ]


VOCABULARIES = ("wordpiece", "unigram", "bpe", "byte_bpe")
RUNS = (
    *(GoldenRun("bert", vocabulary) for vocabulary in VOCABULARIES),
    *(GoldenRun("bert", vocabulary, (WHOLE_WORDS,)) for vocabulary in VOCABULARIES),
    GoldenRun("roberta", "byte_bpe"),
    GoldenRun("albert", "unigram"),
    GoldenRun("electra"),
    GoldenRun("modernbert", "byte_bpe"),
    GoldenRun("xlnet", "unigram"),
    GoldenRun("left_to_right"),
    GoldenRun("causal_then_masked"),
)


def _run(module_and_flags: list[str], log: pathlib.Path) -> None:
    with log.open("ab") as file:
        command = [sys.executable, "-m", *module_and_flags]
        subprocess.run(command, check=True, stdout=file, stderr=subprocess.STDOUT)


def _build_stores(home: pathlib.Path) -> None:
    text = home / "text.jsonl"
    _run(["data_pipeline.python_docs", str(home / "all.jsonl")], home / "build.log")
    lines = (home / "all.jsonl").read_text().splitlines(keepends=True)
    text.write_text("".join(lines[:DOCUMENTS]))
    for vocabulary in VOCABULARIES:
        trained = [f"--train_vocab={vocabulary}", "--vocab_size=2000", "--lowercase=false"]
        trained.append("--holdout=0.05")
        output = f"--output={home / 'stores' / vocabulary}"
        _run(["data_pipeline.build", f"--input={text}", output, *trained], home / "build.log")


def _kill_half_way(command: list[str], workdir: pathlib.Path) -> None:
    """Start a run, and kill it once the checkpoint of step KILLED_AFTER is whole."""
    with workdir.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", *command], stdout=log, stderr=log)
        while not (workdir / "checkpoints" / str(KILLED_AFTER)).is_dir():
            if process.poll() is not None:
                raise SystemExit(f"{workdir} ended before it was killed: {workdir}.log")
            time.sleep(0.01)
        process.kill()
        process.wait()


def make(home: pathlib.Path, runs: list[GoldenRun]) -> None:
    """Train each run to its end, and a second time until it is killed half way."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "stores").exists():
        _build_stores(home)
    for run in runs:
        folder = home / run.name
        if (folder / "killed").exists():
            continue
        folder.mkdir(exist_ok=True)
        _run(run.command(home, folder / "whole"), folder / "whole.log")
        _kill_half_way(run.command(home, folder / "partial"), folder / "partial")
        (folder / "partial").rename(folder / "killed")
        print(f"{run.name}: made", flush=True)


def check(home: pathlib.Path, runs: list[GoldenRun]) -> int:
    """Resume a copy of each killed run, and compare; return the number that differ."""
    differing = 0
    for run in runs:
        folder = home / run.name
        shutil.rmtree(folder / "resumed", ignore_errors=True)
        shutil.copytree(folder / "killed", folder / "resumed", symlinks=True)
        _run(run.command(home, folder / "resumed"), folder / "resumed.log")
        comparison = compare_runs(folder / "whole", folder / "resumed")
        differing += bool(comparison.differences)
        found = "; ".join(comparison.differences) or f"{comparison.arrays} arrays equal"
        print(f"{run.name}: {found}", flush=True)
    print(f"{len(runs) - differing} of {len(runs)} runs end as they began")
    return differing


def main() -> int:
    """Run one part; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "check"))
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    runs = [run for run in RUNS if given.only in run.name]
    home = given.directory.resolve()
    if given.what == "make":
        make(home, runs)
        return 0
    return int(check(home, runs) > 0)


if __name__ == "__main__":
    sys.exit(main())
