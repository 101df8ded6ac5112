"""transformers and sentence-transformers as one side of exported_model.py.

Runs in an environment of its own, and reads the folder as a user of these libraries does.
"""

import importlib.util
import json
import pathlib
import sys

import numpy as np
import torch
import transformers


def of_transformers(folder: str, ours: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the largest differences at tokens that are no padding."""
    kind = json.loads((pathlib.Path(folder) / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor(ours["row_input_ids"], dtype=torch.long),
            attention_mask=torch.tensor(ours["row_input_mask"], dtype=torch.long),
            token_type_ids=torch.tensor(ours["row_segment_ids"], dtype=torch.long),
            output_hidden_states=True,
        )
    seen = ours["row_input_mask"].astype(bool)
    hidden = torch.stack(out.hidden_states).numpy()
    differences = {"hidden": np.abs(hidden - ours["hidden"])[:, seen].max()}
    for name, field in (
        ("pooled", "pooler_output"),
        ("mlm", "prediction_logits"),
        ("mlm", "logits"),
        ("nsp", "seq_relationship_logits"),
        ("cls" if kind.endswith("SequenceClassification") else "tokens", "logits"),
    ):
        value = getattr(out, field, None)
        if kind.endswith("QuestionAnswering") and name == "tokens":
            value = torch.stack([out.start_logits, out.end_logits], dim=-1)
        if value is not None and name in ours:
            difference = np.abs(value.numpy() - ours[name])
            differences[name] = (
                difference[seen] if name in ("mlm", "tokens") else difference
            ).max()
    return {kind: 0.0, **{name: float(value) for name, value in differences.items()}}


def of_the_tokeniser(folder: str, ours: dict[str, np.ndarray]) -> bool:
    """Whether it gives our ids for every sentence."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ends = np.cumsum(ours["text_lengths"])
    expected = [
        ours["text_ids"][end - length : end].tolist()
        for end, length in zip(ends, ours["text_lengths"], strict=True)
    ]
    texts = [text.decode() for text in ours["texts"]]
    return [tokenizer(text, truncation=True)["input_ids"] for text in texts] == expected


def of_sentence_transformers(folder: str, ours: dict[str, np.ndarray]) -> float:
    """Return the largest difference from our mean vectors, over the sentences of one segment."""
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(folder)
    texts = [text.decode() for text in ours["texts"]]
    ids = torch.tensor(ours["row_input_ids"][: len(texts)], dtype=torch.long)
    mask = torch.tensor(ours["row_input_mask"][: len(texts)], dtype=torch.long)
    encoder = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    fit = [i for i, length in enumerate(ours["text_lengths"]) if length == int(mask[i].sum())]
    vectors = model.encode(texts, convert_to_numpy=True)
    return float(np.abs(vectors[fit] - means.numpy()[fit]).max())


def main() -> None:
    """Entry point."""
    folder, file = sys.argv[1:]
    torch.set_num_threads(1)
    ours = dict(np.load(file))
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for name, value in of_transformers(folder, ours).items():
        print(f"  {name:8} {value:.1e}" if value else f"  {name}")
    print(f"  the same token ids: {of_the_tokeniser(folder, ours)}")
    if importlib.util.find_spec("sentence_transformers") is not None:
        print(f"  sentence-transformers, means: {of_sentence_transformers(folder, ours):.1e}")


if __name__ == "__main__":
    main()
