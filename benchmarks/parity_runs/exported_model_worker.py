"""Run transformers as one side of exported_model.py and exports.py.

Runs in an environment of its own, and reads a folder as its user does.
"""

import json
import pathlib
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.step.workers import serve


def name_versions() -> dict[str, Any]:
    """Return the versions of this side."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def compare(folder: str, file: str, again: str = "") -> dict[str, Any]:
    """Compare a folder with the outputs and ids in `file`; save what was read to `again`.

    The answer has the largest differences at tokens that are no padding, the arrays that the class
    lacks, and the texts with other ids.
    """
    ours = dict(np.load(file))
    kind = json.loads((pathlib.Path(folder) / "config.json").read_text())["architectures"][0]
    model, loading = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if again:
        model.save_pretrained(again)
        tokenizer.save_pretrained(again)
    # In float64: transformers' float32 alone can be off by more than 1e-5.
    differences = compare_outputs(model.double().eval(), kind, ours)
    return {
        "kind": kind,
        "differences": differences,
        "missing": sorted(map(str, loading["missing_keys"])),
        "other_ids": find_other_ids(tokenizer, ours),
    }


def compare_outputs(model: Any, kind: str, ours: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the largest difference of hidden states and of each head."""
    inputs = {"input_ids": "row_input_ids", "attention_mask": "row_input_mask"}
    if getattr(model.config, "type_vocab_size", 0) > 1 or model.config.model_type == "xlnet":
        inputs["token_type_ids"] = "row_segment_ids"
    rows = {name: torch.tensor(ours[row], dtype=torch.long) for name, row in inputs.items()}
    with torch.no_grad():
        out = model(**rows, output_hidden_states=True)
    seen = ours["row_input_mask"].astype(bool)
    hidden, compared = torch.stack(out.hidden_states).numpy(), slice(None)
    if model.config.model_type == "modernbert" and transformers.__version__.startswith("4."):
        compared = slice(-1)  # its last hidden states are before the last norm
    differences = {"hidden": np.abs(hidden - ours["hidden"])[compared, seen].max()}
    is_of_rows = kind.endswith("SequenceClassification")
    for name, field in (
        ("pooled", "pooler_output"),
        ("mlm", "prediction_logits"),
        ("mlm", "logits"),
        ("nsp", "seq_relationship_logits"),
        ("nsp", "sop_logits"),
        ("rtd", "logits"),
        ("cls" if is_of_rows else "tokens", "logits"),
    ):
        value = getattr(out, field, None)
        if "QuestionAnswering" in kind and name == "tokens":
            value = torch.stack([out.start_logits, out.end_logits], dim=-1)
        if value is not None and name in ours and value.shape == ours[name].shape:
            difference = np.abs(value.numpy() - ours[name])
            has_tokens = name in ("mlm", "rtd", "tokens")
            differences[name] = (difference[seen] if has_tokens else difference).max()
    if "pll" in ours:
        differences |= compare_likelihoods(model, ours) | compare_gradients(model, rows, ours)
    if not differences.keys() - {"hidden"} and not kind.endswith("Model"):
        differences["no head"] = float("inf")
    return {name: float(value) for name, value in differences.items()}


def predict_words(model: Any, **inputs: torch.Tensor) -> torch.Tensor:
    """Return the logits of the masked language model's head."""
    out = model(**inputs)
    return out.prediction_logits if hasattr(out, "prediction_logits") else out.logits


def compare_likelihoods(model: Any, ours: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the largest difference of sentences' pseudo-log-likelihoods, per token."""
    inputs = {"input_ids": "pll_input_ids", "attention_mask": "pll_input_mask"}
    rows = {name: torch.tensor(ours[row], dtype=torch.long) for name, row in inputs.items()}
    number = np.arange(len(ours["pll_positions"]))
    with torch.no_grad():
        logits = predict_words(model, **rows)[number, ours["pll_positions"]]
    nats = torch.log_softmax(logits, -1).numpy()[number, ours["pll_masked_ids"]]
    sums = np.bincount(ours["pll_sentence"], weights=nats, minlength=len(ours["pll"]))
    tokens = np.bincount(ours["pll_sentence"], minlength=len(ours["pll"]))
    return {"likelihood": float(np.max(np.abs(sums - ours["pll"]) / np.maximum(tokens, 1)))}


def compare_gradients(
    model: Any, rows: dict[str, torch.Tensor], ours: dict[str, np.ndarray]
) -> dict[str, float]:
    """Return the largest difference of the gradients of the loss, relative where they exceed 1."""
    is_predicted = torch.tensor(ours["predicted"])
    logits = predict_words(model, **rows)[is_predicted]
    torch.nn.functional.cross_entropy(logits, rows["input_ids"][is_predicted]).backward()
    theirs = dict(model.named_parameters(remove_duplicate=False))
    worst = 0.0
    for name in (name for name in ours if name.startswith("gradient_")):
        gradient = theirs[name.removeprefix("gradient_")].grad
        expected = np.zeros(ours[name].shape) if gradient is None else gradient.numpy()
        scale = max(1.0, float(np.abs(expected).max()))
        worst = max(worst, float(np.abs(expected - ours[name]).max()) / scale)
    return {"gradients": worst}


def find_other_ids(tokenizer: Any, ours: dict[str, np.ndarray]) -> list[str]:
    """Return the texts for which the tokenizer gives other ids than ours."""
    ends = np.cumsum(ours["text_lengths"])
    other = []
    for text, end, length in zip(ours["texts"], ends, ours["text_lengths"], strict=True):
        words = bytes.fromhex(str(text)).decode()
        expected = ours["text_ids"][end - length : end].tolist()
        if tokenizer(words, truncation=True)["input_ids"] != expected:
            other.append(words)
    return other


if __name__ == "__main__":
    serve({"name_versions": name_versions, "compare": compare})
