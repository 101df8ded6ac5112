"""Pre-train a small BERT on your own text, and let it guess words that were hidden from it.

    python examples/pretrain_on_your_text.py 'texts/*.txt' runs/example [FLAGS]

Documents are separated by a blank line. Three commands do the work; each could be typed by hand.
FLAGS that begin with --config go to bert_jax.train, others to data_pipeline.build.
More: docs/guide/data.md, docs/guide/training.md.
"""

import json
import pathlib
import subprocess
import sys


def run(module: str, *arguments: str) -> None:
    """Run a command of this project; stop here if it fails."""
    print("$ python -m", module, *arguments, flush=True)
    if code := subprocess.run([sys.executable, "-m", module, *arguments]).returncode:
        sys.exit(code)  # the command has said why


if len(sys.argv) < 3:
    sys.exit(__doc__)
texts, workdir, *flags = sys.argv[1:]
train_flags = [flag for flag in flags if flag.startswith("--config")]
build_flags = [flag for flag in flags if flag not in train_flags]
store = str(pathlib.Path(workdir) / "store")

# %% Text to a store: a vocabulary is trained, and a tenth of the documents is held out.
if not (pathlib.Path(store) / "manifest.json").exists():
    run(
        "data_pipeline.build",
        f"--input={texts}",
        f"--output={store}",
        "--train_vocab=wordpiece",
        "--vocab_size=2048",
        "--holdout=0.1",
        *build_flags,
    )

# %% The store to a model. The same command, also of this script, resumes a run that was stopped.
run(
    "bert_jax.train",
    "--config=configs/quickstart.py",
    f"--config.data.store={store}",
    f"--workdir={workdir}",
    *train_flags,
)

# %% Did it learn from context? Its held-out loss must lie below the unigram model's.
summary = json.loads((pathlib.Path(workdir) / "summary.json").read_text())
loss, unigram = summary["heldout_mlm_loss"], summary["unigram_mlm_loss"]
print(f"held-out MLM loss {loss:.2f} nats, {unigram:.2f} without context")

# %% Guess words of held-out sentences.
run("bert_jax.fill_mask", f"--checkpoint={workdir}", "--heldout=3")
