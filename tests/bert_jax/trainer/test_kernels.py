"""What a run does with kernels that its devices compute rightly or wrongly."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import pytest

from bert_jax.config import Config, EvalConfig, MeshConfig, ModelConfig, Phase
from bert_jax.model import attention
from bert_jax.model.attention import dispatch, verify
from bert_jax.model.attention.verify import KernelCheck
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime import run_record
from bert_jax.trainer import compile
from data_pipeline.io import Refused
from tests.bert_jax.small_runs import prepare, small_config

pytestmark = pytest.mark.usefixtures("kernels_on_the_cpu")


@pytest.fixture
def kernels_on_the_cpu(monkeypatch):
    """Let `auto` and `kernel` choose the TPU kernel, which checks and steps never reach here."""
    choose = attention.choose

    def choose_a_kernel(setting, *arguments):
        if setting in ("auto", "kernel"):
            return attention.Choice(attention.KERNEL, attention.KERNEL, attention.KERNEL)
        return choose(setting, *arguments)

    monkeypatch.setattr(attention, "choose", choose_a_kernel)


@pytest.fixture
def errors(monkeypatch):
    """The error of each check to come; the checks that were made."""
    given = {"error": 1.0, "checked": []}

    def check(kernel, shape, mesh):
        given["checked"].append(shape.seq_len)
        return KernelCheck(kernel, shape, {"output": given["error"]}, 0)

    monkeypatch.setattr(verify, "check_kernel", check)
    return given


@pytest.fixture
def build(tiny_store, tmp_path):
    phase = Phase(seq_len=16, steps=4, batch_size=8, max_predictions_per_seq=3)
    phases = (phase, dataclasses.replace(phase, seq_len=24))
    config = small_config(tiny_store, phases=phases, eval=EvalConfig(every_steps=100, examples=8))

    def build(**changes):
        return prepare(dataclasses.replace(config, **changes), tmp_path / "run")

    return build


def test_a_sound_kernel_is_checked_once_and_recorded(build, errors):
    setup = build()
    lengths = sorted({phase.seq_len for phase in setup.config.phases})
    assert sorted(errors["checked"]) == lengths
    assert setup.findings == [] and not setup.parts.attention
    recorded = json.loads((setup.workdir / run_record.FILE).read_text())["kernels"]
    assert set(recorded.values()) == {compile.SOUND} and len(recorded) == len(lengths)
    build()
    assert sorted(errors["checked"]) == lengths  # a resume keeps the verdict


@pytest.mark.parametrize(
    ("objectives", "teacher", "expected"),
    [
        (("causal", "mlm"), {}, [(True, 0.1, 0.0), (False, 0.1, 0.0)]),
        (("mlm",), {"attention_probs_dropout_prob": 0.0}, [(False, 0.1, 0.0)]),
        (
            ("mlm",),
            {"position_embedding_type": "rotary"},
            [(False, 0.1, 0.0), (False, 0.1, 10_000.0)],
        ),
    ],
)
def test_all_that_a_run_asks_of_a_kernel_at_one_length_is_checked(objectives, teacher, expected):
    """Which keys a query sees, dropout and rotary positions, in the phases and in a teacher."""
    phases = tuple(Phase(16, 4, objective=objective) for objective in objectives)
    config, model = Config(phases=phases), ModelConfig()
    parts = types.SimpleNamespace(
        config=config,
        model=types.SimpleNamespace(config=model, dtype=jnp.dtype("bfloat16")),
        mesh=mesh_lib.make_mesh(MeshConfig(), jax.devices()[:1]),
        teacher=types.SimpleNamespace(config=dataclasses.replace(model, **teacher)),
    )
    shapes = [shape for _, shape in compile.find_kernels(parts).values()]
    assert [(shape.is_causal, shape.rate, shape.theta) for shape in shapes] == expected


@pytest.mark.slow
def test_a_kernel_that_differs_is_replaced_now_and_at_each_resume(build, errors):
    errors["error"] = 2.5
    for _ in range(2):
        setup = build()
        (finding,) = setup.findings
        assert finding.rule == "kernel_differs" and "2.50 times" in finding.sentence
        assert setup.parts.attention == attention.find_reference(setup.config.model)
        assert setup.parts.model.config == setup.config.model
        errors["error"] = 1.0


def test_a_kernel_that_is_required_and_differs_is_refused(build, errors):
    errors["error"] = 2.5
    compute = dataclasses.replace(build().config.compute, attention="kernel")
    with pytest.raises(Refused, match=r"config\.compute\.attention is 'kernel'.*set it to auto"):
        build(compute=compute)


def test_a_kernel_that_evaluation_alone_takes_is_found(monkeypatch):
    """Flash attention has no dropout, so training at this rate is plain."""
    monkeypatch.setattr(
        attention,
        "choose",
        lambda setting, device, *arguments: dispatch.choose(setting, "v5e", *arguments),
    )
    mesh = mesh_lib.make_mesh(MeshConfig(), jax.devices()[:1])
    for positions, expected in (
        ("rotary", [(attention.FLASH, 0.0)]),
        ("learned", [(attention.KERNEL, 0.1)]),
    ):
        model = ModelConfig(position_embedding_type=positions, attention_probs_dropout_prob=0.1)
        pairs = compile.find_kernels_of("auto", mesh, 512, model, jnp.dtype("bfloat16"))
        assert [(kernel, shape.rate) for kernel, shape in pairs] == expected
