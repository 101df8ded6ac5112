"""Continue a small ModernBERT on another field, with and without replay, against fresh weights.

    python -m benchmarks.continue_encoder --english='wiki/*.gz' --output=DIR

A ModernBERT of 4 layers of 256 is pre-trained on English for an hour. For 20 minutes each, with
three seeds, it is continued on Python's documentation alone (`continued`), it is continued with a
quarter of English rows (`replayed`), and fresh weights of its size are trained on the documentation
(`fresh`); `old` is the model of English as it is. All have the vocabulary of English. Prints nats
per masked token on held-out text of both fields, and the accuracy of a task: which of ten packages
a docstring is from, learned and tested on modules that no run has read.

Minutes become steps once, by the speed of a short run here, and DIR keeps them: a stopped benchmark
resumes with the same command, and all but --seeds must stay. Five hours on two free cores.
"""

import argparse
import collections
import csv
import json
import pathlib
import statistics
import subprocess
import sys

import rich.console
import rich.table

from benchmarks.families import claim
from benchmarks.results import HELP, Measured, open_row, write_row
from bert_jax.logging.statistics import describe_mean

CLASSES, MIN_WORDS = 10, 5
ROWS, SEQ_LEN, HEAD_WIDTH = 32, 128, 64
RATE, CONTINUED_RATE = 2e-3, 5e-4
SYSTEMS = {"old": "", "continued": "0", "replayed": "0.25", "fresh": ""}  # share of replay
MEASURES = ("field", "english", "task")


def shape_model(width: int, layers: int) -> list[str]:
    """Return the flags of a ModernBERT; its gated MLP has the weights of an ungated 4 x width."""
    return [
        "--config=configs/quickstart.py:model=modernbert",
        f"--config.model.hidden_size={width}",
        f"--config.model.num_hidden_layers={layers}",
        f"--config.model.num_attention_heads={width // HEAD_WIDTH}",
        f"--config.model.intermediate_size={8 * width // 3 // 8 * 8}",
        "--config.model.max_position_embeddings=128",
        "--config.model.local_attention=32",
    ]


def run(module: str, *flags: object) -> None:
    """Run a command of the project to its end."""
    subprocess.run([sys.executable, "-m", module, *map(str, flags)], check=True)


def split_documents(source: pathlib.Path, field: pathlib.Path, task: pathlib.Path) -> list[str]:
    """Write the text to train on and the task's tables; return the packages of the task.

    Of each four modules of the ten packages with most text, in the order of their names, one is the
    task's training split and one its development split; no run trains on either.
    """
    documents = [json.loads(line) for line in source.read_text().splitlines()]
    sizes: collections.Counter[str] = collections.Counter()
    for document in documents:
        if "." in document["title"] and " " not in document["title"]:
            sizes[document["title"].split(".")[0]] += len(document["text"])
    packages = sorted(name for name, _ in sizes.most_common(CLASSES))
    chosen = [d for d in documents if d["title"].split(".")[0] in packages]
    task.mkdir(parents=True, exist_ok=True)
    for part, split in enumerate(("train", "dev")):
        with (task / f"{split}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["text", "package"])
            for document in chosen[part::4]:
                package = document["title"].split(".")[0]
                paragraphs = document["text"].splitlines()
                table.writerows(
                    [text, package] for text in paragraphs if len(text.split()) >= MIN_WORDS
                )
    kept = {id(d) for part in (0, 1) for d in chosen[part::4]}
    lines = [json.dumps(d) + "\n" for d in documents if id(d) not in kept]
    field.write_text("".join(lines))
    return packages


def build_stores(english: str, folder: pathlib.Path) -> None:
    """Build the stores of English and of the field with one vocabulary, and the task's tables."""
    if not (folder / "english").exists():
        vocabulary = ("--train_vocab=wordpiece", "--vocab_size=8192", "--min_document_chars=1000")
        store = f"--output={folder / 'english'}"
        run("data_pipeline.build", f"--input={english}", store, *vocabulary, "--holdout=0.03")
    if not (folder / "field").exists():
        run("data_pipeline.python_docs", folder / "python.jsonl")
        split_documents(folder / "python.jsonl", folder / "field.jsonl", folder / "task")
        vocabulary = (f"--vocab={folder / 'english' / 'vocab.txt'}", "--holdout=0.1")
        store = f"--output={folder / 'field'}"
        run("data_pipeline.build", f"--input={folder / 'field.jsonl'}", store, *vocabulary)


def schedule(steps: int, rate: float) -> list[str]:
    """Return the flags of a constant rate and a decay in the last tenth of so many steps."""
    decayed = max(1, steps // 10)
    flags = [f"--config.phases[0].steps={steps - decayed}", f"--config.phases[1].steps={decayed}"]
    for phase in (0, 1):
        sizes = {"seq_len": SEQ_LEN, "batch_size": ROWS, "micro_batches": 1}
        flags += [f"--config.phases[{phase}].{name}={size}" for name, size in sizes.items()]
    flags += [f"--config.optim.learning_rate={rate}"]
    flags += [f"--config.optim.warmup_steps={max(1, steps // 20)}"]
    flags += [f"--config.phases[1].restart_learning_rate={rate}"]
    flags += ["--config.phases[1].restart_warmup_steps=0"]
    flags += ["--config.phases[1].restart_decay=one_minus_sqrt"]
    flags += [f"--config.phases[1].restart_end_learning_rate={rate / 1000}"]
    return [*flags, "--config.optim.decay=constant", f"--config.eval.every_steps={steps}"]


def train(workdir: pathlib.Path, *flags: str) -> None:
    """Train to the end, unless the run is finished."""
    if not (workdir / "summary.json").exists():
        run("bert_jax.train", *flags, f"--workdir={workdir}")


def measure_steps(model: list[str], folder: pathlib.Path) -> float:
    """Return the steps of a minute here, from the last lines of a short run; keep them."""
    path = folder / "steps_per_minute.json"
    if not path.exists():
        store = f"--config.data.store={folder / 'english'}"
        train(folder / "speed", *model, store, *schedule(40, RATE), "--config.log_every_steps=5")
        lines = (folder / "speed" / "metrics.jsonl").read_text().splitlines()
        speeds = [json.loads(line).get("sequences_per_sec") for line in lines]
        median = statistics.median([speed for speed in speeds if speed])
        path.write_text(json.dumps(median * 60 / ROWS))
    return float(json.loads(path.read_text()))


def train_system(
    name: str, seed: int, steps: int, model: list[str], folder: pathlib.Path
) -> pathlib.Path:
    """Train a system with a seed; return its workdir."""
    if name == "old":
        return folder / "run_english"
    workdir = folder / f"{name}-seed{seed}"
    stores, base = [folder / "field"], [*model, *schedule(steps, RATE)]
    if name != "fresh":
        stores += [folder / "english"] * (SYSTEMS[name] != "0")
        recipe = f"--config=configs/continue.py:family=ettin,replay={SYSTEMS[name]}"
        base = [recipe, *schedule(steps, CONTINUED_RATE), "--config.data.packed_examples=1"]
        base += [f"--config.init=orbax:{folder / 'run_english'}"]
    store = f"--config.data.store={','.join(map(str, stores))}"
    train(workdir, *base, store, f"--config.seed={seed}", f"--config.data.random_seed={seed}")
    return workdir


def score(run_folder: pathlib.Path, seed: int, name: str, folder: pathlib.Path) -> dict[str, float]:
    """Score a run on the held-out text of both fields, and fine-tune it on the task."""
    scores = {}
    for store in ("field", "english"):
        output = folder / "scores" / f"{name}-seed{seed}-{store}.jsonl"
        output.parent.mkdir(exist_ok=True)
        if not output.exists():
            place = (f"--store={folder / store}", f"--seq_len={SEQ_LEN}", f"--output={output}")
            run("bert_jax.evaluate", f"--checkpoint={run_folder}", *place)
        scores[store] = float(json.loads(output.read_text().splitlines()[-1])["mlm_loss"])
    workdir = folder / "tasks" / f"{name}-seed{seed}"
    if not (workdir / "predictions").exists():
        columns = ("--config.data.text_column=text", "--config.data.label_column=package")
        given = (f"--config.init=orbax:{run_folder}", f"--config.data.dir={folder / 'task'}")
        seeds = (f"--config.seed={seed}", f"--config.data.order_seed={seed}")
        rates = ("--config.optim.learning_rate=3e-4", "--config.epochs=5")
        table = "--config=configs/finetune/table.py"
        run("bert_jax.finetune", table, *columns, *given, *seeds, *rates, f"--workdir={workdir}")
    summary = json.loads((workdir / "summary.json").read_text())
    return scores | {"task": float(summary["heldout_dev_accuracy"])}


def main() -> None:
    """Train, score and print all systems."""
    parser = argparse.ArgumentParser(description="Continue an encoder on another field.")
    parser.add_argument("--english", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--english_minutes", type=float, default=60.0)
    parser.add_argument("--field_minutes", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--record", default="", metavar="ROW", help=HELP)
    given = parser.parse_args()
    row = open_row(given.record)
    folder, free = given.output, ("output", "seeds", "record")
    claim(folder, **{name: value for name, value in vars(given).items() if name not in free})
    build_stores(given.english, folder)
    model = shape_model(given.width, given.layers)
    per_minute = measure_steps(model, folder)
    english, field = (
        max(20, round(minutes * per_minute))
        for minutes in (given.english_minutes, given.field_minutes)
    )
    store = f"--config.data.store={folder / 'english'}"
    train(folder / "run_english", *model, store, *schedule(english, RATE))
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in SYSTEMS}
    for seed in range(given.seeds):
        for name in SYSTEMS:
            trained = train_system(name, seed, field, model, folder)
            scores[name].append(score(trained, seed, name, folder))
    (folder / "scores.json").write_text(json.dumps(scores, indent=2))
    table = rich.table.Table("system", "steps", *MEASURES)
    for name, runs in scores.items():
        cells = [describe_mean([found[measure] for found in runs]) for measure in MEASURES]
        table.add_row(name, f"{english if name == 'old' else field:,}", *cells)
    rich.console.Console(width=110).print(table)
    what = f"ModernBERT of {given.layers} layers of {given.width}, {english:,} steps of English"
    what += f", then {field:,} on Python's documentation: MLM loss on held-out documentation, "
    what += "on held-out English, dev accuracy of naming a docstring's package of ten"
    write_row(row, describe(scores, what, given.seeds))


def describe(scores: dict[str, list[dict[str, float]]], what: str, seeds: int) -> Measured:
    """Describe median and range of each system and measure."""
    figures = []
    for name, runs in scores.items():
        cells = []
        for measure in MEASURES:
            found = sorted(run[measure] for run in runs)
            spread = f" ({found[0]:.3f} to {found[-1]:.3f})" if found[0] < found[-1] else ""
            cells.append(f"{statistics.median(found):.3f}{spread}")
        figures.append(f"{name} {', '.join(cells)}")
    return Measured(what, "; ".join(figures), f"{seeds} seeds, median (range); one pre-training")


if __name__ == "__main__":
    main()
