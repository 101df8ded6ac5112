"""Hidden states of Hugging Face's ModernBERT in rows of 4,096, written as long_rows.npz.

    python -m tests.golden.long_rows

in an environment with torch and transformers. As encoders.py, but for the rows, and weights large
enough that attention tells positions apart; kept are the states of a few positions.
"""

import json
import pathlib

import numpy as np

from tests.golden import encoders

LENGTH, LENGTHS = 4096, (4096, 3001)  # of the rows, and of the text in each
POSITIONS = (0, 1, 63, 64, 65, 511, 1024, 2047, 3000)  # kept of both rows
ENDS = (3001, 4094, 4095)  # kept of the complete row alone
SIZES = encoders.SIZES | encoders.SPECIAL | {"cls_token_id": 1, "sep_token_id": 2}
SIZES |= {"num_hidden_layers": 3, "max_position_embeddings": LENGTH, "local_attention": 128}
SIZES |= {"global_attn_every_n_layers": 2}


def weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw the parameter of this name, float32; queries and keys are four times as large."""
    drawn = encoders.weights(name, shape)
    if "Wqkv" in name:
        drawn[: 2 * shape[0] // 3] *= 4
    return drawn


def batch() -> dict[str, np.ndarray]:
    """Draw a complete row and a padded one."""
    ids = np.random.default_rng(4096).integers(3, encoders.VOCAB, (len(LENGTHS), LENGTH))
    return {"input_ids": ids, "attention_mask": np.arange(LENGTH) < np.array(LENGTHS)[:, None]}


def main() -> None:
    """Entry point."""
    import torch
    import transformers

    torch.set_num_threads(1)
    config = transformers.ModernBertConfig(**SIZES, attn_implementation="eager")
    model = transformers.ModernBertModel(config).eval()
    given = {name: torch.tensor(array).long() for name, array in batch().items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(weights(name, tuple(parameter.shape))))
        layers = model(**given, output_hidden_states=True).hidden_states
    hidden = torch.stack(layers).numpy()
    np.savez_compressed(
        pathlib.Path(__file__).with_suffix(".npz"),
        config=json.dumps(config.to_dict()),
        shapes=json.dumps({name: list(array.shape) for name, array in model.named_parameters()}),
        hidden=hidden[:, :, POSITIONS],
        ends=hidden[:, 0, ENDS],
        made_with=f"torch {torch.__version__}, transformers {transformers.__version__}",
    )


if __name__ == "__main__":
    main()
