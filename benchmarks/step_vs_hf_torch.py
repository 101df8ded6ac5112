"""Time our training step and Hugging Face's classes in PyTorch, and check that both agree.

    python -m benchmarks.step_vs_hf_torch --json_out=step_vs_hf_torch.json
    python -m benchmarks.step_vs_hf_torch --sizes=roberta,albert,electra,modernbert,xlnet
    python -m benchmarks.step_vs_hf_torch --sizes=4x256,bert_masked,modernbert --dtype=bfloat16
    python -m benchmarks.step_vs_hf_torch --device=cuda --sizes=base-128,base-512 --turn_secs=2

Both take turns in one run, as in step/side_by_side.py. Theirs has SDPA attention, torch.compile
and fused AdamW; in bfloat16, the default on a GPU, both keep float32 weights. The first run makes
their environment (--torch_env); --torch_python=PYTHON takes one that is there, with torch and
transformers in it. Before anything is timed, both must have the same number of parameters and,
with their weights in our model, the same losses in float32, a BERT also the same gradients. Of
ELECTRA and XLNet, whose losses depend on what each side draws, parameters are counted alone.
"""

import importlib.metadata
import pathlib
from collections.abc import Sequence

import rich.console
from absl import app, flags

from benchmarks.results import HELP
from benchmarks.step import hf_names, side_by_side
from benchmarks.step.cases import CASES
from benchmarks.step.workers import ROOT

WANTED = ("transformers==4.57.6", "torch==2.13.0")
DEFAULT_SIZES = {"cpu": ["4x256"], "cuda": ["base-128", "base-512", "large-128", "large-512"]}

DEVICE = flags.DEFINE_enum("device", "cpu", list(DEFAULT_SIZES), "of both sides")
DTYPE = flags.DEFINE_enum("dtype", None, ["float32", "bfloat16"], "by default as the device is")
ROUNDS = flags.DEFINE_integer("rounds", 10, "turns of each side, at each size", lower_bound=1)
TURN_SECS = flags.DEFINE_float("turn_secs", 3.0, "about how long a side's turn lasts")
SIZES = flags.DEFINE_list("sizes", [], f"which of {', '.join(CASES)}; by default as the device is")
COMPILE = flags.DEFINE_bool("torch_compile", True, "whether theirs goes through torch.compile")
TORCH_ENV = flags.DEFINE_string(
    "torch_env", str(ROOT / ".venv-hf-torch"), "their environment; made if absent"
)
TORCH_PYTHON = flags.DEFINE_string("torch_python", None, "their interpreter, instead of making one")
JSON_OUT = flags.DEFINE_string("json_out", None, "file to write every round to")
RECORD = flags.DEFINE_string("record", "", HELP)


def main(argv: Sequence[str]) -> None:
    """Check, time and report; 1 where the two sides disagree."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    sizes = SIZES.value or DEFAULT_SIZES[DEVICE.value]
    unknown = sorted(set(sizes) - CASES.keys())
    if unknown:
        raise app.UsageError(f"--sizes has {unknown[0]!r}; it may name {', '.join(CASES)}")
    dtype = DTYPE.value or {"cpu": "float32", "cuda": "bfloat16"}[DEVICE.value]
    console = rich.console.Console()
    if TORCH_PYTHON.value:
        python = pathlib.Path(TORCH_PYTHON.value).absolute()
    else:
        wanted = [*WANTED, f"numpy=={importlib.metadata.version('numpy')}"]
        env = pathlib.Path(TORCH_ENV.value).absolute()
        python = side_by_side.make_environment(env, wanted, console)
    other = side_by_side.Theirs(
        name="Hugging Face's class",
        python=python,
        module="benchmarks.step.hf_torch_worker",
        timed_as={"device": DEVICE.value, "dtype": dtype, "compiles": COMPILE.value},
        checked_as={"device": "cpu", "dtype": "float32", "compiles": False},
        to_ours=hf_names.from_hf_torch,
    )
    cases = {name: CASES[name] for name in sizes}
    turns = ROUNDS.value, TURN_SECS.value
    side_by_side.report(other, cases, DEVICE.value, *turns, console, JSON_OUT.value, RECORD.value)


if __name__ == "__main__":
    app.run(main)
