"""Take a checkpoint into transformers and sentence-transformers.

    python examples/checkpoint_to_transformers.py orbax:runs/mine exports/mine

The export needs neither library. If they are installed here, the export is loaded in them.
More: docs/guide/checkpoints.md.
"""

import importlib.util
import pathlib
import subprocess
import sys

if len(sys.argv) != 3:
    sys.exit(__doc__)
checkpoint, folder = sys.argv[1:]
sentence = "The method returns a list."

# %% Export. The copy is read back and compared with the original before the folder gets its name.
exported = subprocess.run(
    [sys.executable, "-m", "bert_jax.convert", f"--from={checkpoint}", f"--to=hf:{folder}"]
)
if exported.returncode:  # the command has said why
    sys.exit(exported.returncode)
print("files:", ", ".join(sorted(path.name for path in pathlib.Path(folder).iterdir())))

# %% transformers: the masked language model and its tokenizer.
if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder)
    logits = model(**tokenizer(sentence, return_tensors="pt")).logits
    print("transformers: logits", tuple(logits.shape))
else:
    print("transformers: not installed, skipped")

# %% sentence-transformers: one vector per sentence, the mean of the token vectors.
if importlib.util.find_spec("sentence_transformers"):
    from sentence_transformers import SentenceTransformer

    vectors = SentenceTransformer(folder).encode([sentence])
    print("sentence-transformers: vectors", vectors.shape)
else:
    print("sentence-transformers: not installed, skipped")
