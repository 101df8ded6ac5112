"""bert-jax ENTRY [FLAGS]: the same as python -m with the entry's module.

    bert-jax build        data_pipeline.build         text files to a store
    bert-jax inspect      data_pipeline.inspect       what is in a store, and what looks wrong
    bert-jax grow_vocab   data_pipeline.grow_vocab    a vocabulary, with words of a field
    bert-jax plan         bert_jax.plan               what a run on TPUs needs, takes and costs
    bert-jax train        bert_jax.train              a store to a trained model
    bert-jax finetune     bert_jax.finetune           a checkpoint to a model of a task
    bert-jax predict      bert_jax.predict            new rows by a fine-tuned model
    bert-jax convert      bert_jax.convert            a checkpoint in another layout
    bert-jax grid         bert_jax.grid               the best rate and epochs of a task, over seeds
    bert-jax benchmark    bert_jax.benchmark          how long a training step takes here
    bert-jax fill_mask    bert_jax.fill_mask          what a trained model guesses for [MASK]
    bert-jax features     bert_jax.features           vectors of your texts from a trained model
    bert-jax evaluate     bert_jax.evaluate           what a checkpoint scores on a store
    bert-jax feature_ner  bert_jax.feature_ner        named entities on a frozen model, by a BiLSTM
    bert-jax verify_resume bert_jax.verify_resume     that kills lose nothing on this machine
    bert-jax replay       bert_jax.replay             the text of any step of a run
    bert-jax score        bert_jax.score              a file of predictions, as the official script
    bert-jax probe        bert_jax.probe              a task's score from each checkpoint of a run

bert-jax ENTRY --help lists an entry's flags.
"""

import runpy
import sys

from bert_jax import __version__
from data_pipeline import ctrl_c, live_line
from data_pipeline.exit_code import REFUSED

MODULES = {
    "build": "data_pipeline.build",
    "inspect": "data_pipeline.inspect",
    "grow_vocab": "data_pipeline.grow_vocab",
    "plan": "bert_jax.plan",
    "train": "bert_jax.train",
    "finetune": "bert_jax.finetune",
    "predict": "bert_jax.predict",
    "grid": "bert_jax.grid",
    "benchmark": "bert_jax.benchmark",
    "fill_mask": "bert_jax.fill_mask",
    "convert": "bert_jax.convert",
    "features": "bert_jax.features",
    "evaluate": "bert_jax.evaluate",
    "feature_ner": "bert_jax.feature_ner",
    "verify_resume": "bert_jax.verify_resume",
    "replay": "bert_jax.replay",
    "score": "bert_jax.score",
    "probe": "bert_jax.probe",
}


def main() -> None:
    """Run the entry that the first argument names, as python -m would."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--help", "-h"):
        print(__doc__)
    elif name == "--version":
        print(f"bert_jax {__version__}")
    elif name not in MODULES:
        known = ", ".join(MODULES)
        print(f"error: {name!r} is no entry of bert-jax; they are {known}", file=sys.stderr)
        sys.exit(REFUSED)
    else:
        del sys.argv[1]
        ctrl_c.ends_the_process()
        live_line.show_imports()
        runpy.run_module(MODULES[name], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
