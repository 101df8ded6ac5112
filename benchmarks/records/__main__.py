"""Train recipes from several seeds, score them, and keep the table of records.

    python -m benchmarks.records --build=STORE
    python -m benchmarks.records --score=WORKDIR --store=STORE
    python -m benchmarks.records --run=CONFIG --seeds=1,2,3,4,5 --output=DIR --store=STORE
    python -m benchmarks.records --entry=NAME --changed=TEXT --workdirs=A,B,C,D,E --store=STORE
    python -m benchmarks.records --check

benchmarks/records/README.md has the rules. --run is `python -m bert_jax.train` in DIR/seed-N for
each seed; a finished run is not trained again, a stopped one resumes. DIR/losses.json has loss and
train_secs of every seed that DIR has seen. Settings may follow as --config.KEY=VALUE.
"""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
from typing import Any

from benchmarks.families import train
from benchmarks.records import entries
from benchmarks.records.masked_tokens import score_split
from bert_jax.interop import load
from bert_jax.interop.pretrained import place_masked_lm
from bert_jax.logging.console import Screen
from bert_jax.logging.metrics_writer import SUMMARY
from data_pipeline.cli.terminal import make_console
from data_pipeline.io.refused import Refused
from data_pipeline.store import open_store
from data_pipeline.vocab import load_recorded

RESULTS = "losses.json"
TEXT = pathlib.Path(__file__).parent / "python_docs.jsonl.gz"


def score(workdir: str, store: str, screen: Screen) -> float:
    """Return nats per token of a run's newest checkpoint on a store's held-out text.

    Raises:
      Refused: the run was trained with another vocabulary, or as score_split says.
    """
    checkpoint, opened = load.load(workdir), open_store(store)
    own = load_recorded(opened.vocab_path, opened.manifest["vocabulary"])
    if checkpoint.vocabulary.pieces() != own.pieces():
        raise Refused(
            f"{workdir} was trained with another vocabulary than the one of {store}; "
            "give the run's store as --store"
        )
    return score_split(place_masked_lm(checkpoint), opened.heldout, screen)


def describe_recipe(config: str, flags: list[str], store: str) -> dict[str, Any]:
    """Return what two calls must share for their runs to be of one recipe."""
    source = pathlib.Path(config.split(":")[0])
    return {
        "config": config,
        "config_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "flags": flags,
        "store": open_store(store).digest,
    }


def run_seeds(
    recipe: dict[str, Any], store: str, seeds: list[int], output: pathlib.Path, screen: Screen
) -> dict[str, Any]:
    """Train and score each seed, and write the results after each.

    Raises:
      Refused: the folder has runs of another recipe.
    """
    path = output / RESULTS
    results = json.loads(path.read_text()) if path.exists() else {"recipe": recipe, "seeds": {}}
    if results["recipe"] != recipe:
        changed = ", ".join(key for key in recipe if results["recipe"].get(key) != recipe[key])
        raise Refused(f"{path} is of another recipe: {changed} differs; give another --output")
    output.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    for seed in seeds:
        workdir = output / f"seed-{seed}"
        if str(seed) not in results["seeds"]:
            train(recipe["config"], seed, store, workdir, recipe["flags"])
            summary = json.loads((workdir / SUMMARY).read_text())
            loss = score(str(workdir), store, screen)
            results["seeds"][str(seed)] = {"loss": loss, "train_secs": summary["train_secs"]}
            path.write_text(json.dumps(results, indent=1) + "\n")
        found = results["seeds"][str(seed)]
        print(f"seed {seed}: {found['loss']:.4f} nats per token, {found['train_secs']:.1f} s")
    return results


def build(output: str) -> None:
    """Build the store of the table from its text; raise Refused if its fingerprint differs."""
    command = [sys.executable, "-m", "data_pipeline.build", f"--input={TEXT}", f"--output={output}"]
    command += ["--train_vocab=wordpiece", "--vocab_size=4096", "--holdout=0.05"]
    subprocess.run(command, check=True)
    check_store(output)


def check_store(store: str) -> None:
    """Raise Refused unless a store is the table's."""
    if (digest := open_store(store).digest) != entries.STORE_DIGEST:
        raise Refused(
            f"{store} is the store {digest[:12]}, and the table's is {entries.STORE_DIGEST[:12]}; "
            "build it by --build=DIR with the packages of requirements/ci.txt"
        )


def check() -> int:
    """Print the table; return 1 if an entry breaks a rule."""
    verdicts = entries.check_entries(entries.read_entries())
    make_console(highlight=False).print(entries.build_table(verdicts))
    return int(any(verdict.faults for verdict in verdicts))


def add_entry(arguments: argparse.Namespace, screen: Screen) -> int:
    """Score finished runs, write their entry, and print the table with it."""
    check_store(arguments.store)
    entry = entries.make_entry(
        arguments.track,
        arguments.changed,
        arguments.workdirs.split(","),
        lambda workdir: score(workdir, arguments.store, screen),
    )
    print(f"wrote {entries.write_entry(arguments.entry, entry)}")
    return check()


def parse_arguments(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments, and the settings of the recipe to run."""
    parser = argparse.ArgumentParser(prog="benchmarks.records", description=__doc__.split("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--build", metavar="STORE")
    action.add_argument("--score", metavar="WORKDIR")
    action.add_argument("--run", metavar="CONFIG")
    action.add_argument("--entry", metavar="NAME")
    action.add_argument("--check", action="store_true")
    parser.add_argument("--store", default="runs/quickstart/store")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")])
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--track", choices=(entries.COMPUTE, entries.DATA), default=entries.COMPUTE)
    parser.add_argument("--changed", metavar="TEXT")
    parser.add_argument("--workdirs", metavar="A,B,C,D,E")
    arguments, flags = parser.parse_known_args(argv)
    if unknown := [flag for flag in flags if not (arguments.run and flag.startswith("--config."))]:
        parser.error(f"{unknown[0]} is not known; --run takes --config.KEY=VALUE")
    if arguments.run and not (arguments.seeds and arguments.output):
        parser.error("--run needs --seeds=1,2,3 and --output=DIR")
    if arguments.entry and not (arguments.changed and arguments.workdirs):
        parser.error("--entry needs --changed=TEXT and --workdirs=A,B,C,D,E")
    return arguments, flags


def main(argv: list[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    arguments, flags = parse_arguments(argv)
    screen = Screen(is_writer=True)
    try:
        if arguments.build:
            build(arguments.build)
        elif arguments.score:
            print(f"{score(arguments.score, arguments.store, screen):.4f} nats per token")
        elif arguments.run:
            recipe = describe_recipe(arguments.run, flags, arguments.store)
            run_seeds(recipe, arguments.store, arguments.seeds, arguments.output, screen)
        elif arguments.entry:
            return add_entry(arguments, screen)
        else:
            return check()
    except (Refused, OSError, subprocess.CalledProcessError) as error:
        print(f"benchmarks.records: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
