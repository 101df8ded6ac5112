"""Logits of Hugging Face's classes with the layer of a task, written as task_layers.npz.

    python -m tests.golden.task_layers

in an environment with torch and transformers. Sizes, rows and weights are those of encoders.py:
only each class's config, the shapes of its parameters and its logits are kept.
"""

import json
import pathlib
from typing import Any

import numpy as np

from tests.golden import encoders, xlnet

TASKS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
CLASSES = 5
MEAN = " of the mean"  # behind the name of a class that pools it
CAUSAL = " left to right"  # behind that of one that reads so


def models() -> dict[str, dict[str, Any]]:
    """Return the config of each class, by its name."""
    configs = {}
    for kind, sizes in encoders.MODELS.items():
        stem = kind.removesuffix("ForMaskedLM")
        for task in TASKS if stem != kind else ():
            labels = {"num_labels": CLASSES} if "Classification" in task else {}
            configs[stem + task] = sizes | labels
    for task in ("ForSequenceClassification", "ForMultipleChoice"):
        name = f"ModernBert{task}"
        configs[name + MEAN] = configs[name] | {"classifier_pooling": "mean"}
    for task in ("ForTokenClassification", "ForQuestionAnswering"):
        configs[f"Bert{task}{CAUSAL}"] = configs[f"Bert{task}"] | {"is_decoder": True}
    for task in TASKS:
        labels = {"num_labels": CLASSES} if "Classification" in task else {}
        name = f"XLNet{task}" + "Simple" * (task == "ForQuestionAnswering")
        configs[name] = xlnet.SIZES | {"dropout": 0.0, "summary_type": "first"} | labels
    return configs


def segment_ids() -> np.ndarray:
    """Return which tokens are of a second text, for models that tell two."""
    row = np.arange(encoders.LENGTH) >= encoders.LENGTH // 2
    return np.tile(row.astype(np.int64), (encoders.ROWS, 1))


def compute(kind: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Compute the logits of a class; in multiple choice the rows are one question's choices."""
    import torch
    import transformers

    name = kind.split()[0]
    model_class = getattr(transformers, name)
    config = model_class.config_class(**sizes, attn_implementation="eager", architectures=[name])
    model = model_class(config).eval()
    inputs = {k: array for k, array in encoders.batch().items() if k != "labels"}
    if config.to_dict().get("type_vocab_size", 0) > 1 or config.model_type == "xlnet":
        inputs["token_type_ids"] = segment_ids()
    if "MultipleChoice" in name:
        inputs = {k: array[None] for k, array in inputs.items()}
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(encoders.weights(path, tuple(parameter.shape))))
        out = model(**{k: torch.tensor(array) for k, array in inputs.items()})
    is_span = "QuestionAnswering" in name
    logits = torch.stack([out.start_logits, out.end_logits], -1) if is_span else out.logits
    shapes = {path: list(parameter.shape) for path, parameter in model.named_parameters()}
    return {
        f"{kind}/config": json.dumps(config.to_dict()),
        f"{kind}/shapes": json.dumps(shapes),
        f"{kind}/logits": logits.numpy(),
    }


def main() -> None:
    """Entry point."""
    import torch
    import transformers

    torch.set_num_threads(1)
    arrays = {}
    for kind, sizes in models().items():
        arrays |= compute(kind, sizes)
    np.savez_compressed(
        pathlib.Path(__file__).with_suffix(".npz"),
        **arrays,
        made_with=f"torch {torch.__version__}, transformers {transformers.__version__}",
    )


if __name__ == "__main__":
    main()
