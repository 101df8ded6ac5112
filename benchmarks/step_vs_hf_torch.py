"""Time our training step beside Hugging Face's BertForPreTraining in PyTorch, and check both agree.

    python -m benchmarks.step_vs_hf_torch --json_out=step_vs_hf_torch.json
    python -m benchmarks.step_vs_hf_torch --device=cuda --sizes=base-128,base-512 --turn_secs=2

Both take turns in one run; side_by_side.py says how. Theirs has SDPA attention, torch.compile and
fused AdamW; on a GPU both compute in bfloat16 and keep float32 weights. The first run makes their
environment (--torch_env); --torch_python=PYTHON takes one that is there, with torch and
transformers in it. Before anything is timed, both must have the same number of parameters and,
with their weights in our model, the same losses and gradients in float32.
"""

import importlib.metadata
import pathlib
import sys
from collections.abc import Sequence

import rich.console
from absl import app, flags

from benchmarks import environment, hf_torch_names, side_by_side
from benchmarks.cases import CASES
from benchmarks.turns import ROOT

WANTED = ("transformers==4.57.6", "torch==2.13.0")
DEFAULT_SIZES = {"cpu": ["4x256"], "cuda": ["base-128", "base-512", "large-128", "large-512"]}

DEVICE = flags.DEFINE_enum("device", "cpu", list(DEFAULT_SIZES), "of both sides")
ROUNDS = flags.DEFINE_integer("rounds", 10, "turns of each side, at each size", lower_bound=1)
TURN_SECS = flags.DEFINE_float("turn_secs", 3.0, "about how long a side's turn lasts")
SIZES = flags.DEFINE_list("sizes", [], f"which of {', '.join(CASES)}; by default as the device is")
COMPILE = flags.DEFINE_bool("torch_compile", True, "whether theirs goes through torch.compile")
TORCH_ENV = flags.DEFINE_string(
    "torch_env", str(ROOT / ".venv-hf-torch"), "their environment; made if absent"
)
TORCH_PYTHON = flags.DEFINE_string("torch_python", None, "their interpreter, instead of making one")
JSON_OUT = flags.DEFINE_string("json_out", None, "file to write every round to")


def main(argv: Sequence[str]) -> None:
    """Check, time and report; 1 where the two sides disagree."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    sizes = SIZES.value or DEFAULT_SIZES[DEVICE.value]
    unknown = sorted(set(sizes) - CASES.keys())
    if unknown:
        raise app.UsageError(f"--sizes has {unknown[0]!r}; it may name {', '.join(CASES)}")
    console = rich.console.Console()
    if TORCH_PYTHON.value:
        python = pathlib.Path(TORCH_PYTHON.value).absolute()
    else:
        wanted = [*WANTED, f"numpy=={importlib.metadata.version('numpy')}"]
        env = pathlib.Path(TORCH_ENV.value).absolute()
        python = environment.interpreter(env, wanted, console)
    other = side_by_side.Theirs(
        name="BertForPreTraining",
        python=python,
        module="benchmarks.hf_torch_worker",
        timed_as={"device": DEVICE.value, "compiles": COMPILE.value},
        checked_as={"device": "cpu", "compiles": False},
        to_ours=hf_torch_names.from_hf,
    )
    cases = {name: CASES[name] for name in sizes}
    try:
        results = side_by_side.compare(other, cases, DEVICE.value, ROUNDS.value, TURN_SECS.value)
    except (RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    side_by_side.show(results, console)
    side_by_side.write(results, JSON_OUT.value)


if __name__ == "__main__":
    app.run(main)
