"""Run a command by its name: bert-jax NAME is the same as python -m with the command's module."""

import difflib
import runpy
import sys

from bert_jax import __version__
from data_pipeline.cli.main import REFUSED, outlive_readers, start

# Name: module, and what it does.
COMMANDS = {
    "build": ("data_pipeline.build", "text files to a store"),
    "inspect": ("data_pipeline.inspect", "what is in a store, and what looks wrong"),
    "grow_vocab": ("data_pipeline.grow_vocab", "a vocabulary, with words of a field"),
    "plan": ("bert_jax.plan", "what a run on TPUs takes and costs, and what a budget buys"),
    "train": ("bert_jax.train", "a store to a trained model"),
    "finetune": ("bert_jax.finetune", "a checkpoint to a model of a task"),
    "predict": ("bert_jax.predict", "new rows by a fine-tuned model"),
    "convert": ("bert_jax.convert", "a checkpoint in another layout"),
    "grid": ("bert_jax.grid", "the best rate and epochs of a task, over seeds"),
    "benchmark": ("bert_jax.benchmark", "how long a training step takes here"),
    "doctor": ("bert_jax.doctor", "whether this machine is fit for a run"),
    "fill_mask": ("bert_jax.fill_mask", "what a trained model guesses for [MASK]"),
    "features": ("bert_jax.features", "vectors of your texts from a trained model"),
    "evaluate": ("bert_jax.evaluate", "what a checkpoint scores on a store"),
    "feature_ner": ("bert_jax.feature_ner", "named entities on a frozen model, by a BiLSTM"),
    "verify_resume": ("bert_jax.verify_resume", "check that a killed run loses no work"),
    "report": ("bert_jax.report", "how a run is doing, or how runs differ"),
    "replay": ("bert_jax.replay", "the text of any step of a run"),
    "score": ("bert_jax.score", "a file of predictions, as the official script"),
    "baseline": ("bert_jax.baseline", "vectors or a biLM from before BERT, on a store"),
    "frozen_task": ("bert_jax.frozen_task", "a task on frozen vectors, or on counts of tokens"),
    "study": ("bert_jax.study", "a table of systems compared over seeds, on one store"),
    "ladder": ("bert_jax.ladder", "a scaling law of your text, from small models"),
    "probe": ("bert_jax.probe", "a task's score from each checkpoint of a run"),
}
MODULES = {name: module for name, (module, _) in COMMANDS.items()}


def main() -> None:
    """Run the command that the first argument names, as python -m would."""
    outlive_readers()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--help", "-h"):
        print("bert-jax COMMAND [FLAGS]: the same as python -m with the command's module.\n")
        for command, (module, does) in COMMANDS.items():
            print(f"    bert-jax {command:13} {module:26} {does}")
        print("\nbert-jax COMMAND --help lists a command's flags.")
    elif name == "--version":
        print(f"bert_jax {__version__}")
    elif name not in MODULES:
        known = ", ".join(MODULES)
        near = difflib.get_close_matches(name, MODULES, 1)
        hint = f"did you mean {near[0]}?" if near else f"they are {known}"
        print(f"error: {name!r} is no command of bert-jax; {hint}", file=sys.stderr)
        sys.exit(REFUSED)
    else:
        del sys.argv[1]
        start()
        runpy.run_module(MODULES[name], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
