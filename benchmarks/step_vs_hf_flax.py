"""Time our training step and Hugging Face's FlaxBertForPreTraining; check that they agree.

    python -m benchmarks.step_vs_hf_flax --rounds=10 --json_out=step_vs_hf_flax.json

Both take turns in one run; step/side_by_side.py says how. The first run makes their environment
(--hf_env), with the versions of jax, flax and optax that are installed here, so that programs are
compared and not versions of jax. Before anything is timed, both must have the same number of
parameters and, with their weights in our model, the same losses and gradients.
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

TRANSFORMERS = "transformers==4.57.6"  # the last release with Flax models
SAME_AS_OURS = ("jax", "jaxlib", "flax", "optax", "numpy")

ROUNDS = flags.DEFINE_integer("rounds", 10, "turns of each side, at each size", lower_bound=1)
TURN_SECS = flags.DEFINE_float("turn_secs", 3.0, "about how long a side's turn lasts")
SIZES = flags.DEFINE_list("sizes", ["4x256", "12x768"], f"which of {', '.join(CASES)}")
HF_ENV = flags.DEFINE_string("hf_env", str(ROOT / ".venv-hf"), "their environment; made if absent")
HF_LOSS = flags.DEFINE_enum(
    "hf_loss", "onehot", ["onehot", "integer"], "form of their cross entropy; onehot: the example's"
)
PLATFORM = flags.DEFINE_string("platform", "cpu", "JAX_PLATFORMS of both sides")
JSON_OUT = flags.DEFINE_string("json_out", None, "file to write every round to")
RECORD = flags.DEFINE_string("record", "", HELP)


def main(argv: Sequence[str]) -> None:
    """Check, time and report; 1 where the two sides disagree."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    unknown = sorted(set(SIZES.value) - CASES.keys())
    if unknown:
        raise app.UsageError(f"--sizes has {unknown[0]!r}; it may name {', '.join(CASES)}")
    console = rich.console.Console()
    wanted = [f"{name}=={importlib.metadata.version(name)}" for name in SAME_AS_OURS]
    env = pathlib.Path(HF_ENV.value).absolute()
    other = side_by_side.Theirs(
        name="FlaxBertForPreTraining",
        python=side_by_side.make_environment(env, [TRANSFORMERS, *wanted], console),
        module="benchmarks.step.hf_flax_worker",
        timed_as={"form": HF_LOSS.value},
        checked_as={"form": HF_LOSS.value},
        to_ours=hf_names.from_hf_flax,
    )
    cases = {name: CASES[name] for name in SIZES.value}
    turns = ROUNDS.value, TURN_SECS.value
    side_by_side.report(other, cases, PLATFORM.value, *turns, console, JSON_OUT.value, RECORD.value)


if __name__ == "__main__":
    app.run(main)
