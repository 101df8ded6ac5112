"""Time our training step beside Hugging Face's FlaxBertForPreTraining, and check that they agree.

    python -m benchmarks.step_vs_hf_flax --rounds=10 --json_out=step_vs_hf_flax.json

Both take turns in one run; side_by_side.py says how. The first run makes their environment
(--hf_env), with the versions of jax, flax and optax that are installed here, so that programs are
compared and not versions of jax. Before anything is timed, both must have the same number of
parameters and, with their weights in our model, the same losses and gradients.
"""

import importlib.metadata
import pathlib
import sys
from collections.abc import Sequence

import rich.console
from absl import app, flags

from benchmarks import environment, hf_flax_names, side_by_side
from benchmarks.cases import CASES
from benchmarks.turns import ROOT

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
        python=environment.interpreter(env, [TRANSFORMERS, *wanted], console),
        module="benchmarks.hf_flax_worker",
        timed_as={"form": HF_LOSS.value},
        checked_as={"form": HF_LOSS.value},
        to_ours=hf_flax_names.from_hf,
    )
    cases = {name: CASES[name] for name in SIZES.value}
    try:
        results = side_by_side.compare(other, cases, PLATFORM.value, ROUNDS.value, TURN_SECS.value)
    except (RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    side_by_side.show(results, console)
    side_by_side.write(results, JSON_OUT.value)


if __name__ == "__main__":
    app.run(main)
