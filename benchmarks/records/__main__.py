"""Train a recipe from several seeds, or score one model, by benchmarks/records/masked_tokens.py.

    make quickstart
    python -m benchmarks.records --score=runs/quickstart
    python -m benchmarks.records --run=configs/quickstart.py --seeds=1,2,3 --output=DIR

Each run is `python -m bert_jax.train` in DIR/seed-N; a finished one is not trained again, a stopped
one resumes. DIR/losses.json has loss (nats per token) and train_secs of every seed that DIR has
seen. Settings of the recipe may follow as --config.KEY=VALUE.
"""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
from typing import Any

from benchmarks.records.masked_tokens import score_split
from bert_jax.interop import load
from bert_jax.interop.pretrained import place_masked_lm
from bert_jax.logging.console import Screen
from bert_jax.logging.metrics_writer import SUMMARY
from data_pipeline.io.refused import Refused
from data_pipeline.store import open_store
from data_pipeline.vocab import load_recorded

RESULTS = "losses.json"


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


def train(recipe: dict[str, Any], store: str, seed: int, workdir: pathlib.Path) -> None:
    """Run the ordinary trainer to its end, unless it has been there; raise if it fails."""
    if (workdir / SUMMARY).exists():
        return
    command = [sys.executable, "-m", "bert_jax.train", f"--config={recipe['config']}"]
    command += [*recipe["flags"], f"--config.data.store={store}", f"--workdir={workdir}"]
    command += [f"--config.seed={seed}", f"--config.data.random_seed={seed}"]
    subprocess.run(command, check=True)


def describe_recipe(config: str, flags: list[str], store: str) -> dict[str, Any]:
    """Return what two calls must share for their runs to be of one recipe."""
    source = pathlib.Path(config.split(":")[0])
    manifest = open_store(store).directory / "manifest.json"
    return {
        "config": config,
        "config_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "flags": flags,
        "manifest_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
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
            train(recipe, store, seed, workdir)
            summary = json.loads((workdir / SUMMARY).read_text())
            loss = score(str(workdir), store, screen)
            results["seeds"][str(seed)] = {"loss": loss, "train_secs": summary["train_secs"]}
            path.write_text(json.dumps(results, indent=1) + "\n")
        found = results["seeds"][str(seed)]
        print(f"seed {seed}: {found['loss']:.4f} nats per token, {found['train_secs']:.1f} s")
    return results


def main(argv: list[str] | None = None) -> int:
    """Score a run, or train and score seeds."""
    parser = argparse.ArgumentParser(prog="benchmarks.records", description=__doc__.split("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--score", metavar="WORKDIR")
    action.add_argument("--run", metavar="CONFIG")
    parser.add_argument("--store", default="runs/quickstart/store")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")])
    parser.add_argument("--output", type=pathlib.Path)
    arguments, flags = parser.parse_known_args(argv)
    if unknown := [flag for flag in flags if not (arguments.run and flag.startswith("--config."))]:
        parser.error(f"{unknown[0]} is not known; --run takes --config.KEY=VALUE")
    if arguments.run and not (arguments.seeds and arguments.output):
        parser.error("--run needs --seeds=1,2,3 and --output=DIR")
    screen = Screen(is_writer=True)
    try:
        if arguments.score:
            print(f"{score(arguments.score, arguments.store, screen):.4f} nats per token")
        else:
            recipe = describe_recipe(arguments.run, flags, arguments.store)
            run_seeds(recipe, arguments.store, arguments.seeds, arguments.output, screen)
    except (Refused, OSError, subprocess.CalledProcessError) as error:
        print(f"benchmarks.records: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
