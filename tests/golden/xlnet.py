"""XLNet's two streams by Hugging Face, written as xlnet.npz: hidden vectors, loss, gradients.

    python -m tests.golden.xlnet

in an environment with torch and transformers. As encoders.py; rows, targets and the order of the
targets are drawn here.
"""

import json
import pathlib

import numpy as np

from tests.golden.encoders import VOCAB, weights

ROWS, LENGTH, TARGETS = 3, 17, 5
SIZES = {"vocab_size": VOCAB, "d_model": 12, "n_layer": 3, "n_head": 3, "d_inner": 10}


def batch() -> dict[str, np.ndarray]:
    """Draw rows of which one is padded, their segments, targets, and a rank of every target.

    ranks: int[B,S], -1 where nothing is predicted.
    """
    rng = np.random.default_rng(2019)
    ids = rng.integers(3, VOCAB, (ROWS, LENGTH))
    mask = np.ones_like(ids)
    mask[1, 12:] = 0
    segments = np.zeros_like(ids)
    segments[0, 9:] = segments[1, 5:12] = 1
    places = np.stack([np.sort(rng.choice(11, TARGETS, replace=False)) for _ in range(ROWS)])
    ranks = np.full_like(ids, -1)
    for row in range(ROWS):
        ranks[row, places[row]] = rng.permutation(TARGETS)
    return {
        "input_ids": ids,
        "input_mask": mask,
        "segment_ids": segments,
        "positions": places,
        "ranks": ranks,
    }


def main() -> None:
    """Entry point."""
    import torch
    import transformers

    torch.set_num_threads(1)
    drawn = batch()
    ranks, places = drawn["ranks"], drawn["positions"]
    # A token sees all that is not predicted, and of the targets those of a lower rank.
    hidden = (ranks[:, None, :] >= 0) & (ranks[:, None, :] >= ranks[:, :, None])
    mapping = places[:, :, None] == np.arange(LENGTH)
    config = transformers.XLNetConfig(**SIZES, dropout=0.0)
    model = transformers.XLNetLMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(weights(name, tuple(parameter.shape))))
    inputs = {
        "input_ids": torch.tensor(drawn["input_ids"]),
        "attention_mask": torch.tensor(drawn["input_mask"], dtype=torch.float32),
        "token_type_ids": torch.tensor(drawn["segment_ids"]),
        "use_mems": False,
    }
    with torch.no_grad():
        one_stream = model(**inputs, output_hidden_states=True).hidden_states
    out = model(
        **inputs,
        perm_mask=torch.tensor(hidden, dtype=torch.float32),
        target_mapping=torch.tensor(mapping, dtype=torch.float32),
        labels=torch.tensor(np.take_along_axis(drawn["input_ids"], places, 1)),
        output_hidden_states=True,
    )
    out.loss.backward()
    arrays = {
        "config": json.dumps(config.to_dict()),
        "loss": out.loss.item(),
        "hidden": torch.stack(one_stream).numpy(),
        "targets": out.hidden_states[-1].detach().numpy(),
    }
    for name, parameter in model.named_parameters():
        arrays[f"gradient/{name}"] = parameter.grad.numpy()
    np.savez_compressed(pathlib.Path(__file__).with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    main()
