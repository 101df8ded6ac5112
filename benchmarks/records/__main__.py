r"""Train recipes from several seeds, score them, and keep the table of records.

    python -m benchmarks.records --build=STORE
    python -m benchmarks.records --score=WORKDIR --store=STORE
    python -m benchmarks.records --run=CONFIG --output=DIR --store=STORE \
        [--seeds=1,2,3,4,5] [--name=NAME --changed=TEXT --track=compute|data]
    python -m benchmarks.records --replay=NAME --steps=0:20 --store=STORE
    python -m benchmarks.records --check

benchmarks/records/README.md has the rules. --run is `python -m bert_jax.train` in DIR/seed-N for
each seed; a finished run is not trained again, a stopped one resumes. DIR/losses.json has loss,
train_secs and memory of every seed that DIR has seen; with --name the recipe becomes an entry.
Settings may follow as --config.KEY=VALUE.
"""

import argparse
import json
import pathlib
import re
import resource
import subprocess
import sys
from typing import Any

import jax

from benchmarks.families import train
from benchmarks.records import entries, report, trace
from benchmarks.records.masked_tokens import score_split
from benchmarks.results import HELP, open_row, write_row
from bert_jax.config import Config, overrides, resolve, total_steps
from bert_jax.interop import load
from bert_jax.interop.pretrained import place_masked_lm
from bert_jax.logging.console import Screen
from bert_jax.logging.metrics_writer import SUMMARY
from bert_jax.runtime import code_version, run_record
from bert_jax.runtime.cli import GivenConfig
from bert_jax.trainer.feed import describe_store
from data_pipeline.cli.terminal import make_console
from data_pipeline.io import Refused, small_files
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.store import open_store

RESULTS = "losses.json"
TEXT = pathlib.Path(__file__).parent / "python_docs.jsonl.gz"


def score(workdir: str, store: str, screen: Screen) -> float:
    """Return nats per token of a run's newest checkpoint on a store's held-out text.

    Raises:
      Refused: the run was trained with another vocabulary, or as score_split says.
    """
    checkpoint, opened = load.load(workdir), open_store(store)
    own = opened.load_vocabulary()
    if checkpoint.vocabulary.pieces() != own.pieces():
        raise Refused(
            f"{workdir} was trained with another vocabulary than the one of {store}; "
            "give the run's store as --store"
        )
    return score_split(place_masked_lm(checkpoint), opened.heldout, screen)


def describe_recipe(config: str, flags: list[str], store: str) -> dict[str, Any]:
    """Return the keys that runs of one recipe must share, and the commit."""
    parts, _ = overrides.take(flags, Config)
    opened, code = open_store(store), code_version.describe_code()
    given = GivenConfig(Config, config, tuple(parts)).load()
    settings = entries.describe_settings(resolve(given, store=describe_store(opened.manifest)))
    recipe = {
        "config": config,
        "flags": flags,
        "settings": settings,
        "store": store,
        "store_digest": opened.digest,
        **{key: code[key] for key in ("commit", "source_digest", "packages")},
    }
    return dict(json.loads(json.dumps(recipe)))


def run_seeds(
    recipe: dict[str, Any], seeds: list[int], output: pathlib.Path, screen: Screen
) -> dict[str, Any]:
    """Train each seed, score each, and write the results after each.

    Raises:
      Refused: the folder has runs of another recipe, or the code changed meanwhile.
    """
    path, results = output / RESULTS, {"recipe": recipe, "seeds": {}}
    if path.exists():
        earlier = small_files.read_object(path)
        same = recipe.keys() - {"commit", "store"}  # their digests are compared instead
        if changed := sorted(key for key in same if earlier["recipe"].get(key) != recipe[key]):
            raise Refused(
                f"{path} is of another recipe: {', '.join(changed)} differs; give another --output"
            )
        results["seeds"] = earlier["seeds"]
    output.mkdir(parents=True, exist_ok=True)
    # All train before one is scored: a child's peak is never under what its parent held before.
    for seed in seeds:
        workdir = output / f"seed-{seed}"
        if str(seed) in results["seeds"]:
            continue
        was_finished = (workdir / SUMMARY).exists()
        train(recipe["config"], seed, recipe["store"], workdir, recipe["flags"])
        code = small_files.read_object(workdir / run_record.FILE)["code"]
        if code["source_digest"] != recipe["source_digest"]:
            raise Refused(f"the code changed before {workdir} was trained; give another --output")
        peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        results["seeds"][str(seed)] = {
            "train_secs": small_files.read_object(workdir / SUMMARY)["train_secs"],
            "peak_mb": None if was_finished else peak_kib * 1024 / 1e6,
        }
        path.write_text(json.dumps(results, indent=1) + "\n")
    for seed in seeds:
        found = results["seeds"][str(seed)]
        if "loss" not in found:
            found["loss"] = score(str(output / f"seed-{seed}"), recipe["store"], screen)
            path.write_text(json.dumps(results, indent=1) + "\n")
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


def check(record: str) -> int:
    """Print the table, and draw it in README.md; return 1 if an entry breaks a rule."""
    row = open_row(record)
    verdicts = entries.check_entries(entries.read_entries())
    make_console(highlight=False).print(report.build_table(verdicts))
    report.update_readme(verdicts)
    write_row(row, report.describe(verdicts))
    return int(any(verdict.faults for verdict in verdicts))


def run(arguments: argparse.Namespace, flags: list[str], screen: Screen) -> None:
    """Train and score the seeds of a recipe; with --name write its entry.

    Raises:
      Refused: as run_seeds and make_entry do; what can be checked is checked before training.
    """
    recipe = describe_recipe(arguments.run, flags, arguments.store)
    if arguments.name:
        check_store(arguments.store)
        entries.find_path(arguments.name)
        config = entries.make_config(recipe["settings"], entries.SEEDS[0], "", "settings")
        tflop = entries.count_tflop(config)
        faults = list(entries.find_faults_of_recipe(arguments.track, config, tflop))
        if not recipe["commit"] or recipe["commit"].endswith("-dirty"):
            faults.append(
                f"the code is at {recipe['commit']}: commit it, so that others can replay"
            )
        if faults:
            raise Refused("; ".join(faults))
    results = run_seeds(recipe, arguments.seeds, arguments.output, screen)
    if arguments.name:
        seed_1 = arguments.output / f"seed-{entries.SEEDS[0]}"
        entry = entries.make_entry(arguments.track, arguments.changed, results, seed_1)
        print(f"wrote {entries.write_entry(arguments.name, entry)}; --check draws the table")


def replay(name: str, steps: tuple[int, int], store: str) -> int:
    """Train an entry's first seed again and compare; return 1 if it differs.

    Raises:
      Refused: there is no such entry, its run lacks the steps, or this code lacks its settings.
    """
    by_name = {entry.name: entry for entry in entries.read_entries()}
    if name not in by_name:
        raise Refused(f"there is no entry {name}; choose from {', '.join(by_name) or 'none yet'}")
    check_store(store)
    entry, (first, last) = by_name[name], steps
    try:
        config = entries.make_config(entry.settings, entries.SEEDS[0], store, name)
    except DamagedFile as error:
        raise Refused(f"{error}; replay it at its commit: git checkout {entry.commit}") from error
    total = total_steps(config)
    marks = [step for step in trace.list_fingerprint_steps(total) if first <= step <= last]
    if not trace.FIRST_STEPS <= last <= total or not marks:
        raise Refused(
            f"--steps is {first}:{last}; end from {trace.FIRST_STEPS} to {total}, the last step of "
            f"{name}, and have a multiple of {trace.FINGERPRINT_STEPS} between them"
        )
    here = entries.describe_machine()
    is_same, is_like = here == entry.machine, here.is_like(entry.machine)
    found = trace.record_trace(config, last if is_like else trace.FIRST_STEPS)
    differences = trace.find_differences(entry.trace, found, first, is_same)
    for difference in differences:
        print(f"{name}: {difference}")
    compared = f"fingerprints after steps {', '.join(map(str, marks))}"
    # The first entries do not say which vector instructions they had: equal ones show it.
    if not is_same and (not is_like or trace.find_differences(entry.trace, found, first, True)):
        compared = f"no fingerprints, which need {entry.machine}"
    verdict = f"differs; its commit is {entry.commit}" if differences else "is the same"
    print(f"{name} {verdict}: rows and losses of {trace.FIRST_STEPS} steps, {compared}")
    return int(bool(differences))


def read_steps(text: str) -> tuple[int, int]:
    """Parse A:B as two steps."""
    if not (match := re.fullmatch(r"(\d+):(\d+)", text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not two steps as in 0:{trace.FIRST_STEPS}")
    return int(match[1]), int(match[2])


def read_seeds(text: str) -> list[int]:
    """Parse numbers with commas between."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not seeds as in 1,2,3")
    return [int(number) for number in text.split(",")]


def parse_arguments(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments, and the settings of the recipe to run."""
    parser = argparse.ArgumentParser(prog="benchmarks.records", description=__doc__.split("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--build", metavar="STORE")
    action.add_argument("--score", metavar="WORKDIR")
    action.add_argument("--run", metavar="CONFIG")
    action.add_argument("--replay", metavar="NAME")
    action.add_argument("--check", action="store_true")
    parser.add_argument("--store", default="runs/quickstart/store")
    parser.add_argument("--seeds", type=read_seeds, default=list(entries.SEEDS), metavar="N,...")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--track", choices=(entries.COMPUTE, entries.DATA), default=entries.COMPUTE)
    parser.add_argument("--changed", metavar="TEXT")
    parser.add_argument("--name", help="write the entry of this name")
    parser.add_argument("--steps", type=read_steps, default=(0, trace.FIRST_STEPS), metavar="A:B")
    parser.add_argument("--record", default="", metavar="ROW", help=f"with --check: {HELP}")
    arguments, flags = parser.parse_known_args(argv)
    if unknown := [flag for flag in flags if not (arguments.run and flag.startswith("--config."))]:
        parser.error(f"{unknown[0]} is not known; --run takes --config.KEY=VALUE")
    if arguments.run and not arguments.output:
        parser.error("--run needs --output=DIR")
    if arguments.name and not (arguments.run and arguments.changed):
        parser.error("--name needs --run=CONFIG and --changed=TEXT")
    return arguments, flags


def main(argv: list[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    arguments, flags = parse_arguments(argv)
    screen = Screen(is_writer=True)
    jax.config.update("jax_platforms", "cpu")
    try:
        if arguments.build is not None:
            build(arguments.build)
        elif arguments.score is not None:
            print(f"{score(arguments.score, arguments.store, screen):.4f} nats per token")
        elif arguments.run is not None:
            run(arguments, flags, screen)
        elif arguments.replay is not None:
            return replay(arguments.replay, arguments.steps, arguments.store)
        else:
            return check(arguments.record)
    except (Refused, OSError, subprocess.CalledProcessError) as error:
        print(f"benchmarks.records: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
