"""Run a command by its name: bert-jax NAME is the same as python -m with the command's module."""

import difflib
import runpy
import shutil
import sys
import textwrap

from bert_jax import __version__
from data_pipeline.cli.main import REFUSED, describe_os_error, outlive_readers, start

# Heading: the commands under it, each with its module and what it does.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "data": {
        "build": ("data_pipeline.build", "turn text files into a store"),
        "inspect": ("data_pipeline.inspect", "show what is in a store, and what looks wrong"),
        "grow_vocab": ("data_pipeline.grow_vocab", "add the words of a field to a vocabulary"),
        "import_tfrecord": ("data_pipeline.import_tfrecord", "import Google BERT's TFRecords"),
        "export_tfrecord": ("data_pipeline.export_tfrecord", "export TFRecords for Google BERT"),
        "store_speed": ("data_pipeline.benchmark", "measure how fast a store gives batches"),
        "python_docs": ("data_pipeline.python_docs", "write Python's documentation as a corpus"),
    },
    "train": {
        "train": ("bert_jax.train", "pre-train a model on a store"),
        "finetune": ("bert_jax.finetune", "fine-tune a checkpoint on a task"),
        "report": ("bert_jax.report", "show how a run is doing, or how runs differ"),
        "replay": ("bert_jax.replay", "show the text of any step of a run"),
        "verify_resume": ("bert_jax.verify_resume", "check that a killed run loses no work"),
    },
    "use": {
        "predict": ("bert_jax.predict", "predict new rows with a fine-tuned model"),
        "features": ("bert_jax.features", "write vectors of your texts"),
        "fill_mask": ("bert_jax.fill_mask", "show what a model guesses for [MASK]"),
        "evaluate": ("bert_jax.evaluate", "score a checkpoint on a store, sentences or a search"),
        "score": ("bert_jax.score", "score predictions as the official script does"),
        "convert": ("bert_jax.convert", "write a checkpoint in another format"),
    },
    "plan": {
        "config": ("bert_jax.settings", "list settings of configs, all or those with a word"),
        "plan": ("bert_jax.plan", "estimate what a TPU run takes, or what a budget buys"),
        "benchmark": ("bert_jax.benchmark", "time a training step on this machine"),
        "doctor": ("bert_jax.doctor", "check whether this machine is fit for a run"),
    },
    "research": {
        "study": ("bert_jax.study", "compare systems, settings or checkpoints over seeds"),
        "ladder": ("bert_jax.ladder", "fit a scaling law on your text with small models"),
        "baseline": ("bert_jax.baseline", "train what came before BERT, and use frozen vectors"),
    },
}
MODULES = {name: module for commands in GROUPS.values() for name, (module, _) in commands.items()}


def main() -> None:
    """Run the command that the first argument names, as python -m would."""
    outlive_readers()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--help", "-h", "--version"):
        try:
            print(f"bert_jax {__version__}" if name == "--version" else _format_help(), flush=True)
        except OSError as error:
            print(f"error: {describe_os_error(error)}", file=sys.stderr)
            sys.exit(REFUSED)
    elif name not in MODULES:
        near = difflib.get_close_matches(name, MODULES, 1)
        hint = f"did you mean {near[0]}?" if near else f"commands are {', '.join(MODULES)}"
        print(f"error: {name!r} is not a bert-jax command; {hint}", file=sys.stderr)
        sys.exit(REFUSED)
    else:
        del sys.argv[1]
        if not sys.flags.safe_path:
            sys.path.insert(0, "")  # python -m does so: a config may import modules from here
        start()
        runpy.run_module(MODULES[name], run_name="__main__", alter_sys=True)


def _format_help() -> str:
    width, indent = max(shutil.get_terminal_size().columns - 1, 40), " " * 19
    lines = ["usage: bert-jax COMMAND [flags]"]
    for group, commands in GROUPS.items():
        lines.append(f"\n{group}:")
        for command, (_, does) in commands.items():
            lines.append(textwrap.fill(f"  {command:16} {does}", width, subsequent_indent=indent))
    return "\n".join([*lines, "\nbert-jax COMMAND --help lists a command's flags."])


if __name__ == "__main__":
    main()
