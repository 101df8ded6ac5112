"""Run a command by its name: bert-jax NAME is the same as python -m with the command's module."""

import difflib
import runpy
import shutil
import sys
import textwrap

from bert_jax import __version__
from data_pipeline.cli.main import REFUSED, outlive_readers, start

# Heading: the commands under it, each with its module and what it does.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "data": {
        "build": ("data_pipeline.build", "text files to a store"),
        "inspect": ("data_pipeline.inspect", "what is in a store, and what looks wrong"),
        "grow_vocab": ("data_pipeline.grow_vocab", "a vocabulary, with words of a field"),
        "import_tfrecord": ("data_pipeline.import_tfrecord", "Google BERT's TFRecords to a store"),
        "export_tfrecord": ("data_pipeline.export_tfrecord", "a store to Google BERT's TFRecords"),
        "store_speed": ("data_pipeline.benchmark", "how fast a store gives batches"),
        "python_docs": ("data_pipeline.python_docs", "Python's own documentation as a corpus"),
    },
    "train": {
        "train": ("bert_jax.train", "a store to a trained model"),
        "finetune": ("bert_jax.finetune", "a checkpoint to a model of a task"),
        "report": ("bert_jax.report", "how a run is doing, or how runs differ"),
        "replay": ("bert_jax.replay", "the text of any step of a run"),
        "verify_resume": ("bert_jax.verify_resume", "check that a killed run loses no work"),
    },
    "use": {
        "predict": ("bert_jax.predict", "new rows by a fine-tuned model"),
        "features": ("bert_jax.features", "vectors of your texts from a trained model"),
        "fill_mask": ("bert_jax.fill_mask", "what a trained model guesses for [MASK]"),
        "evaluate": ("bert_jax.evaluate", "what a checkpoint scores on a store"),
        "score": ("bert_jax.score", "a file of predictions, as the official script"),
        "convert": ("bert_jax.convert", "a checkpoint in another layout"),
    },
    "plan": {
        "config": ("bert_jax.settings", "the settings of configs, or those that match a word"),
        "plan": ("bert_jax.plan", "what a run on TPUs takes and costs, and what a budget buys"),
        "benchmark": ("bert_jax.benchmark", "how long a training step takes here"),
        "doctor": ("bert_jax.doctor", "whether this machine is fit for a run"),
    },
    "research": {
        "study": ("bert_jax.study", "systems, settings or checkpoints compared, over seeds"),
        "ladder": ("bert_jax.ladder", "a scaling law of your text, from small models"),
        "baseline": ("bert_jax.baseline", "what came before BERT, and tasks on frozen vectors"),
    },
}
MODULES = {name: module for commands in GROUPS.values() for name, (module, _) in commands.items()}


def main() -> None:
    """Run the command that the first argument names, as python -m would."""
    outlive_readers()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--help", "-h"):
        print("usage: bert-jax COMMAND [flags]")
        width, indent = shutil.get_terminal_size().columns - 1, " " * 19
        for group, commands in GROUPS.items():
            print(f"\n{group}:")
            for command, (_, does) in commands.items():
                print(textwrap.fill(f"  {command:16} {does}", width, subsequent_indent=indent))
        print("\nbert-jax COMMAND --help lists a command's flags.")
    elif name == "--version":
        print(f"bert_jax {__version__}")
    elif name not in MODULES:
        near = difflib.get_close_matches(name, MODULES, 1)
        hint = f"did you mean {near[0]}?" if near else f"they are {', '.join(MODULES)}"
        print(f"error: {name!r} is no command of bert-jax; {hint}", file=sys.stderr)
        sys.exit(REFUSED)
    else:
        del sys.argv[1]
        start()
        runpy.run_module(MODULES[name], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
