"""Read an export as other libraries' users do: one side of hand_over.py and sentence_vectors.py.

Runs in an environment that has one of the libraries, each imported where it is used.
"""

import functools
import importlib.metadata
import time
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.step.workers import serve

PACKAGES = {
    "sentence_transformers": "sentence-transformers",
    "gliner": "gliner",
    "onnx": "optimum-onnx",
}


def start(library: str, threads: int = 1) -> dict[str, Any]:
    """Return the versions of this side; 0 threads leave PyTorch as many as it takes."""
    if threads:
        torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    names = (PACKAGES[library], "transformers", "torch")
    return {name: importlib.metadata.version(name) for name in names}


def read_ours(file: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return our arrays, and the texts."""
    ours = dict(np.load(file))
    return ours, [bytes.fromhex(str(text)).decode() for text in ours["texts"]]


@functools.cache
def load_sentence_transformer(folder: str) -> Any:
    """Load a folder once for all rounds."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, device="cpu")


def time_vectors(folder: str, file: str, batch_size: int) -> dict[str, Any]:
    """Time the vectors of all texts; return the largest difference from ours too."""
    ours, texts = read_ours(file)
    model = load_sentence_transformer(folder)
    started = time.monotonic()
    vectors_ND = model.encode(texts, batch_size=batch_size, normalize_embeddings=False)
    secs = time.monotonic() - started
    return {"secs": secs, "difference": float(np.abs(vectors_ND - ours["vectors"]).max())}


def compare_vectors(folder: str, file: str) -> dict[str, Any]:
    """Compare the vectors of SentenceTransformer(folder) with the means of our last layer."""
    ours, texts = read_ours(file)
    model = load_sentence_transformer(folder)
    vectors_ND = model.encode(texts)
    return answer(ours, model.tokenizer, texts, {"vectors": vectors_ND})


def compare_gliner(folder: str, file: str) -> dict[str, Any]:
    """Compare the hidden states of the encoder in a new GLiNER, and let that name entities.

    GLiNER adds the tokens of its labels behind the vocabulary and resizes the word table.
    """
    from gliner import GLiNER, GLiNERConfig

    ours, texts = read_ours(file)
    width = transformers.AutoConfig.from_pretrained(folder).hidden_size
    config = GLiNERConfig(model_name=folder, hidden_size=width, max_len=32)
    model = GLiNER.from_config(config).eval()
    tokenizer = model.data_processor.transformer_tokenizer
    encoder = model.model.token_rep_layer.bert_layer.model
    rows = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        hidden_NSD = encoder(**rows).last_hidden_state
    if width % 2 == 0:  # its own LSTM, whose directions share the width
        model.predict_entities("Ada met Grace in London.", ["person", "place"])
    hidden_TD = hidden_NSD[rows["attention_mask"].bool()].numpy()
    return answer(ours, tokenizer, texts, {"hidden states": hidden_TD})


def compare_onnx(folder: str, file: str) -> dict[str, Any]:
    """Compare the logits of the ONNX graph that optimum exports, run by ONNX Runtime."""
    from optimum.onnxruntime import ORTModelForMaskedLM

    if transformers.AutoConfig.from_pretrained(folder).model_type == "xlnet":
        return {"differences": {}, "same_ids": True, "skipped": "optimum exports no XLNet"}
    ours, texts = read_ours(file)
    model = ORTModelForMaskedLM.from_pretrained(folder, export=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    logits_NSV = torch.as_tensor(model(**rows).logits)
    logits_TV = logits_NSV[rows["attention_mask"].bool()].numpy()
    return answer(ours, tokenizer, texts, {"logits": logits_TV})


def answer(
    ours: dict[str, np.ndarray], tokenizer: Any, texts: list[str], theirs: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Return the largest differences from our arrays, and whether the token ids are the same."""
    ids = [number for row in tokenizer(texts, truncation=True)["input_ids"] for number in row]
    is_same = ids == ours["ids"].tolist()
    differences = {
        name: float(np.abs(value - ours[name]).max()) if is_same else float("inf")
        for name, value in theirs.items()
    }
    return {"differences": differences, "same_ids": is_same}


if __name__ == "__main__":
    serve(
        {
            "start": start,
            "sentence_transformers": compare_vectors,
            "time_vectors": time_vectors,
            "gliner": compare_gliner,
            "onnx": compare_onnx,
        }
    )
