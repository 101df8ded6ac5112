"""Who may import whom: each rule of the architecture, and a planted violation that it must find."""

import ast
import dataclasses
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Arrows point from a later layer to the same or an earlier one. A module that stands in no layer
# fails test_every_module_has_a_layer: put it where what it imports and who imports it allow.
LAYERS = (
    {
        "bert_jax.chips",
        "bert_jax.changes",
        "bert_jax.config",
        "bert_jax.config_check",
        "bert_jax.device_grid",
        "bert_jax.exit_codes",
        "bert_jax.finetune_config",
        "bert_jax.flops",
        "bert_jax.overrides",
        "bert_jax.run_config",
    },
    {"bert_jax.slices", "bert_jax.hlo", "bert_jax.hlo_cost", "bert_jax.transfers"},
    {
        "bert_jax.attention",
        "bert_jax.cross_entropy",
        "bert_jax.dropout",
        "bert_jax.ops",
        "bert_jax.mesh",
    },
    {"bert_jax.models"},
    {"bert_jax.layer_rates", "bert_jax.objectives", "bert_jax.optim"},
    {
        "bert_jax.data_parallel",
        "bert_jax.guard",
        "bert_jax.state",
        "bert_jax.metrics",
        "bert_jax.step",
    },
    {
        "bert_jax.bad_steps",
        "bert_jax.baselines",
        "bert_jax.beginning",
        "bert_jax.bert_config",
        "bert_jax.bucket",
        "bert_jax.checkpoint",
        "bert_jax.checkpoint_arrays",
        "bert_jax.checkpoint_choice",
        "bert_jax.checkpoint_folder",
        "bert_jax.checkpoint_reading",
        "bert_jax.checkpoint_vocabulary",
        "bert_jax.clock",
        "bert_jax.compile_cache",
        "bert_jax.conversion",
        "bert_jax.export_proof",
        "bert_jax.hf_export",
        "bert_jax.model_card",
        "bert_jax.run_export",
        "bert_jax.tf1_export",
        "bert_jax.curves",
        "bert_jax.code_version",
        "bert_jax.corpus_rows",
        "bert_jax.data_check",
        "bert_jax.feature_files",
        "bert_jax.feature_vectors",
        "bert_jax.feed",
        "bert_jax.fresh_start",
        "bert_jax.frozen_ner",
        "bert_jax.fine_tuned",
        "bert_jax.finetune_check",
        "bert_jax.finetuning",
        "bert_jax.fingerprint",
        "bert_jax.grid_loop",
        "bert_jax.grid_plot",
        "bert_jax.grid_report",
        "bert_jax.grid_runs",
        "bert_jax.inference",
        "bert_jax.hf",
        "bert_jax.hub",
        "bert_jax.initial_weights",
        "bert_jax.left_out",
        "bert_jax.joining",
        "bert_jax.log",
        "bert_jax.loop",
        "bert_jax.mask_filling",
        "bert_jax.masked_lm",
        "bert_jax.named_tensors",
        "bert_jax.opening",
        "bert_jax.budget",
        "bert_jax.kernel_prices",
        "bert_jax.past_times",
        "bert_jax.phase_facts",
        "bert_jax.phase_plan",
        "bert_jax.plan_report",
        "bert_jax.rate_plot",
        "bert_jax.tpu_step",
        "bert_jax.placed_batches",
        "bert_jax.preparation",
        "bert_jax.pretrained",
        "bert_jax.predictions",
        "bert_jax.pseudo_likelihood",
        "bert_jax.probing",
        "bert_jax.processes",
        "bert_jax.profiling",
        "bert_jax.replayed",
        "bert_jax.programs",
        "bert_jax.readings",
        "bert_jax.receipt",
        "bert_jax.record_files",
        "bert_jax.roll_call",
        "bert_jax.run_feed",
        "bert_jax.run_process",
        "bert_jax.screen",
        "bert_jax.shared_folder",
        "bert_jax.step_line",
        "bert_jax.steps_in_flight",
        "bert_jax.stopping",
        "bert_jax.synthetic",
        "bert_jax.timed_phase",
        "bert_jax.timing",
        "bert_jax.timing_report",
        "bert_jax.storage_errors",
        "bert_jax.store_scores",
        "bert_jax.storage_probe",
        "bert_jax.task_feed",
        "bert_jax.task_layer",
        "bert_jax.tasks",
        "bert_jax.tf1",
        "bert_jax.wall_time",
        "bert_jax.wandb_writer",
        "bert_jax.killed_run",
        "bert_jax.same_run",
        "bert_jax.work",
        "bert_jax.watchdog",
        "bert_jax.workdir",
        "bert_jax.workdir_lock",
    },
    {"bert_jax.command_line", "bert_jax.run_flags"},
)
ENTRIES = {
    f"bert_jax.{name}"
    for name in (
        "train",
        "plan",
        "benchmark",
        "evaluate",
        "__main__",
        "fill_mask",
        "finetune",
        "features",
        "predict",
        "grid",
        "feature_ner",
        "convert",
        "verify_resume",
        "probe",
        "replay",
        "score",
    )
}
NEVER_IN_THE_PIPELINE = {"jax", "jaxlib", "flax", "optax", "orbax", "bert_jax"}
SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc"}


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported name: `from a.b import c` gives a.b.c, which may be a module or a value."""

    module: str
    name: str
    line: int
    at_top: bool

    def is_of(self, packages: set[str]) -> bool:
        return any(self.name == p or self.name.startswith(p + ".") for p in packages)

    def __str__(self) -> str:
        return f"{self.module} line {self.line} imports {self.name}"


def module_name(path: pathlib.Path, root: pathlib.Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(root: pathlib.Path) -> dict[str, pathlib.Path]:
    return {
        module_name(path, root): path
        for package in ("bert_jax", "data_pipeline", "configs")
        for path in sorted((root / package).rglob("*.py"))
    }


def imports(root: pathlib.Path) -> Iterator[Import]:
    for module, path in modules(root).items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {
            node
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            for name in names_imported(node, module, is_package=path.name == "__init__.py"):
                yield Import(module, name, node.lineno, node not in inside)


def names_imported(node: ast.AST, module: str, is_package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    origin = node.module or ""
    if node.level:
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + is_package]
        origin = ".".join([*parts, origin] if origin else parts)
    return [f"{origin}.{alias.name}" for alias in node.names]


def layer(name: str) -> int | None:
    """Number of the layer that a module or a name of it stands in; None outside bert_jax."""
    of = Import("", name, 0, True)
    if of.is_of(ENTRIES):
        return len(LAYERS)
    return next((i for i, packages in enumerate(LAYERS) if of.is_of(packages)), None)


def in_package(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def upward_arrows(root: pathlib.Path) -> list[Import]:
    found = []
    for one in imports(root):
        above, below = layer(one.module), layer(one.name)
        if above is not None and below is not None and below > above:
            found.append(one)
    return found


def imports_of_an_entry(root: pathlib.Path) -> list[Import]:
    return [i for i in imports(root) if i.is_of(ENTRIES) and i.module not in ENTRIES]


def trainer_in_the_pipeline(root: pathlib.Path) -> list[Import]:
    return [
        i
        for i in imports(root)
        if in_package(i.module, "data_pipeline") and i.is_of(NEVER_IN_THE_PIPELINE)
    ]


def tensorflow_at_the_top(root: pathlib.Path) -> list[Import]:
    tensorflow = {"tensorflow", "tensorflow_datasets"}
    return [
        i
        for i in imports(root)
        if in_package(i.module, "bert_jax") and i.is_of(tensorflow) and i.at_top
    ]


def orbax_outside_checkpoint(root: pathlib.Path) -> list[Import]:
    allowed = {"bert_jax.checkpoint", "bert_jax.checkpoint_reading"}
    return [i for i in imports(root) if i.is_of({"orbax"}) and i.module not in allowed]


def nnx_outside_models(root: pathlib.Path) -> list[Import]:
    flax = {"flax"}
    return [
        i for i in imports(root) if i.is_of(flax) and not in_package(i.module, "bert_jax.models")
    ]


def absl_outside_entries(root: pathlib.Path) -> list[Import]:
    entries = {*ENTRIES, "bert_jax.command_line", "bert_jax.run_flags"}
    return [i for i in imports(root) if i.is_of({"absl"}) and i.module not in entries]


def configs_importing_configs(root: pathlib.Path) -> list[Import]:
    """In a wheel configs/ is bert_jax/configs, so `from configs import` works in a clone only."""
    return [i for i in imports(root) if i.is_of({"configs"})]


def names_that_say_nothing(root: pathlib.Path) -> list[str]:
    return [module for module in modules(root) if SAYS_NOTHING & set(module.split("."))]


# A rule, and for its control: the file to plant, its text, and a text that the rule must let pass.
RULES = [
    (
        upward_arrows,
        "bert_jax/models/encoder.py",
        "from bert_jax import step",
        "from bert_jax import ops\nfrom bert_jax.config import Config",
    ),
    (
        upward_arrows,
        "bert_jax/ops.py",
        "def f():\n    from ..bert_jax.optim import lamb",
        "from . import config",
    ),
    (
        upward_arrows,
        "bert_jax/attention/__init__.py",
        "from .. import models",
        "from . import xla",
    ),
    (
        imports_of_an_entry,
        "bert_jax/loop.py",
        "import bert_jax.train",
        "import bert_jax.step",
    ),
    (
        trainer_in_the_pipeline,
        "data_pipeline/pairs.py",
        "def f():\n    import jax.numpy as jnp",
        "import numpy",
    ),
    (
        trainer_in_the_pipeline,
        "data_pipeline/pairs.py",
        "from bert_jax.config import Config",
        "import jaxtyping",
    ),
    (
        tensorflow_at_the_top,
        "bert_jax/feed.py",
        "if True:\n    import tensorflow as tf",
        "def f():\n    import tensorflow as tf",
    ),
    (
        orbax_outside_checkpoint,
        "bert_jax/state.py",
        "import orbax.checkpoint as ocp",
        "import jax",
    ),
    (nnx_outside_models, "bert_jax/step.py", "from flax import nnx", "from jax import numpy"),
    (absl_outside_entries, "bert_jax/loop.py", "from absl import flags", "import sys"),
    (
        configs_importing_configs,
        "configs/large.py",
        "from configs import base",
        "from bert_jax import config",
    ),
    (names_that_say_nothing, "bert_jax/models/utils.py", "", None),
]


@pytest.mark.parametrize(
    "rule", dict.fromkeys(rule for rule, *_ in RULES), ids=lambda r: r.__name__
)
def test_nothing_breaks(rule):
    assert [str(found) for found in rule(ROOT)] == []


@pytest.mark.parametrize(("rule", "path", "broken", "kept"), RULES)
def test_a_planted_violation_is_found(rule, path, broken, kept, tmp_path):
    planted = tmp_path / path
    planted.parent.mkdir(parents=True)
    planted.write_text(broken)
    assert len(rule(tmp_path)) == 1
    if kept is not None:
        planted.write_text(kept)
        assert rule(tmp_path) == []


def test_every_module_has_a_layer():
    ours = [m for m in modules(ROOT) if m.startswith("bert_jax.")]
    assert len(ours) > 10
    assert [m for m in ours if layer(m) is None] == []
