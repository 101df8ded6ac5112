"""A bidirectional LSTM with projections by PyTorch, written as lstm_projection.npz.

    python -m tests.golden.lstm_projection

in an environment with torch: inputs, weights, outputs, and the gradients of a weighted sum of the
outputs.
"""

import json
import pathlib

import numpy as np

ROWS, LENGTH, INPUTS, UNITS, PROJECTION = 3, 9, 5, 7, 4


def main() -> None:
    """Entry point."""
    import torch

    torch.manual_seed(2018)
    lstm = torch.nn.LSTM(INPUTS, UNITS, batch_first=True, bidirectional=True, proj_size=PROJECTION)
    inputs = torch.randn(ROWS, LENGTH, INPUTS, requires_grad=True)
    weights = torch.randn(ROWS, LENGTH, 2 * PROJECTION)
    outputs, _ = lstm(inputs)
    (outputs * weights).sum().backward()
    arrays = {"inputs": inputs, "weights": weights, "outputs": outputs}
    arrays |= {f"parameter {name}": value for name, value in lstm.named_parameters()}
    arrays |= {f"gradient {name}": value.grad for name, value in lstm.named_parameters()}
    arrays["gradient inputs"] = inputs.grad
    made_by = {"script": "tests/golden/lstm_projection.py", "torch": torch.__version__}
    np.savez_compressed(
        pathlib.Path(__file__).with_suffix(".npz"),
        made_by=json.dumps(made_by),
        **{name: value.detach().numpy() for name, value in arrays.items()},
    )


if __name__ == "__main__":
    main()
