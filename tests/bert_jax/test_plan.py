"""python -m bert_jax.plan as a user runs it: one real compile for a slice, and refusals."""

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax import plan
from bert_jax.benchmarking.dial import AIM
from bert_jax.config import Config, overrides, resolve
from bert_jax.planning import slices
from bert_jax.planning.budget import BudgetPlan
from bert_jax.planning.plan import Plan
from bert_jax.trainer.feed import StoreFeed, read_facts
from data_pipeline.store import HELDOUT, open_store
from tests.bert_jax.planning.test_budget import Compiler, OfAKernel, step_secs_of
from tests.bert_jax.tiny_models import with_setting
from tests.faults.runs import ROOT

SMALL = (
    "--config=configs/tiny.py",
    "--config.model.num_hidden_layers=1",
    "--config.model.intermediate_size=256",
    "--topology=v5litepod-16",
)
LAYER = 4 * (128 * 128 + 128) + 2 * 2 * 128 + 2 * 128 * 256 + 256 + 128
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the extra [plan]: pip install libtpu"
)


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory):
    """Where how long compiles took is kept: not in that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.mark.slow
@needs_libtpu
def test_a_plan_of_a_small_model_for_sixteen_chips(tiny_store, tmp_path):
    out, text, picture = (tmp_path / name for name in ("plan.json", "step.txt", "rate.png"))
    written = (f"--json_out={out}", f"--hlo_out={text}", f"--plot_out={picture}", "--scale=16")
    asked = ("--seq_len=128", "--per_chip_batch=4", f"--config.data.store={tiny_store}")
    command = [sys.executable, "-m", "bert_jax.plan", *SMALL, *asked, *written]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (planned.returncode, planned.stderr) == (0, "")
    said = planned.stdout
    assert "v5e:4x4 (gcloud: v5litepod-16), 16 chips: 197 TFLOP/s and 15.75 GiB per chip" in said
    assert "the store's" in said and "(compiler estimate)" in said

    numbers = json.loads(out.read_text())
    (phase,) = numbers["phases"]
    assert (phase["seq_len"], phase["rows_per_step"], phase["rows_per_chip"]) == (128, 64, 4)
    pieces = -(-numbers["vocabulary_size"] // 128) * 128
    weights = LAYER + pieces * 128 + 128 * (512 + 2)
    # Parameters and two moments in float32, over 16 chips but for biases and norms.
    assert weights * 4 / 16 < phase["memory"]["parameters"] < weights * 4
    assert phase["memory"]["optimizer"] == pytest.approx(2 * phase["memory"]["parameters"], abs=8)
    assert 0 < phase["needed_bytes"] < phase["available_bytes"] == 15.75 * 2**30
    check_time(numbers)
    check_text(text.read_text(), phase["estimate"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    (scaled,) = numbers["scale"]
    assert (scaled["chips"], scaled["estimate"]) == (16, phase["estimate"])


def check_time(numbers: dict[str, Any]) -> None:
    run, (phase,) = numbers["run"], numbers["phases"]
    of = phase["estimate"]
    assert of["step_secs"] == pytest.approx(of["work_secs"] + of["exposed_secs"])
    assert of["rows_per_sec_per_chip"] == pytest.approx(4 / of["step_secs"])
    per_chip = phase["flops_per_row"] * of["rows_per_sec_per_chip"]
    assert of["peak_share"] == pytest.approx(per_chip / 197e12)
    assert run["secs"] == pytest.approx(phase["steps"] * of["step_secs"])
    assert run["usd"] == pytest.approx(16 * run["secs"] / 3600 * run["usd_per_chip_hour"])
    assert len(run["epochs"]) == 1 and run["epochs"][0] > 0


def check_text(text: str, estimate: dict[str, Any]) -> None:
    """The compiled step: state given back in place, bfloat16 matmuls, weights gathered."""
    given_back = re.findall(r"\{(\d+)\}: \(\1, ", text.partition("entry_computation_layout")[0])
    # 30 tensors of parameters and two moments of each; the steps of the run and of Adam; the three
    # of the guard's window.
    assert len(given_back) == 3 * 30 + 2 + 3
    assert re.search(r"bf16\[[^\]]*\][^=]* (convolution|dot)\(", text)
    assert {one["path"] for one in estimate["collectives"]} == {"links"}
    assert "all-gather" in {one["kind"] for one in estimate["collectives"]}
    # No loop is in this step: every estimate in the schedule counts once.
    entry = text[text.index("\nENTRY ") :]
    assert " while(" not in entry
    schedule = [line for line in entry.splitlines() if "tpu_custom_call" not in line]
    collective = re.compile(r" (all-\w+|reduce-scatter|collective-permute)(-start)?\(")
    listed = [line for line in schedule if not collective.search(line)]
    cycles = [int(n) for line in listed for n in re.findall(r'"estimated_cycles":"(\d+)"', line)]
    called = sum(
        calls * cycles_of
        for instruction, calls in estimate["kernel_calls"].items()
        for kernel, cycles_of in estimate["kernel_cycles"].items()
        if kernel in instruction
    )
    assert estimate["cycles"] == pytest.approx(sum(cycles) + called)


@needs_libtpu
def test_what_cannot_be_planned_is_refused_in_a_sentence(forked, tiny_store, tmp_path):
    store, prices = f"--config.data.store={tiny_store}", tmp_path / "prices.json"
    shipped = json.loads((ROOT / "bert_jax/planning/prices.json").read_text())
    others = [price for price in shipped["prices"] if price["chip"] != "v5e"]
    prices.write_text(json.dumps({**shipped, "prices": others}))
    refused = {
        "--per_chip_batch is 0": ["--per_chip_batch=0"],
        "batch_size is 90": ["--config.phases[0].batch_size=90"],
        "config.mesh.model_size is 2": [
            *("--scale=16,1", "--config.mesh.preset=tp", "--config.mesh.model_size=2")
        ],
        "--budget, --days say the same thing": ["--budget=300", "--days=4"],
        "--budget, --config.budget say the same thing": ["--budget=300", "--config.budget=2h"],
        "--budget is 0; a shell expands $": ["--budget=00"],
        "prices.json has no price for v5e": ["--budget=300", f"--prices={prices}", store],
        "--config_out is for a config with a budget": ["--config_out=chosen.py"],
        "--json_out is not for a config that a budget chooses": [
            *("--config=configs/auto.py", "--json_out=x.json")
        ],
        "another slice; give the same": [
            *("--config=configs/auto.py", "--config.budget=40usd@v5e:2x4")
        ],
        "give --config.data.store=STORE": ["--config=configs/auto.py"],
    }
    for sentence, given in refused.items():
        ran = forked("bert_jax.plan", *SMALL, *given, code=2)
        assert ran.stdout == ""
        assert ran.stderr.startswith("error: ") and ran.stderr.count("\n") == 1
        assert sentence in ran.stderr


@pytest.mark.parametrize(
    ("place", "given", "steps"),
    [
        ("ettin", {"seq_len": 8192}, 6623),  # it restarts the schedule, with another decay
        ("small", {"seq_len": 512}, 10_000),  # as many steps as the run has of warm-up
        ("modernbert", {"seq_len": 1024, "per_chip_batch": 2}, 12_716),  # fewer tokens than that
        ("base", {"seq_len": 512, "per_chip_batch": 4}, 100_000),
    ],
)
def test_any_phase_is_planned_alone(place, given, steps):
    config = overrides.load(Config, place, lambda name: str(ROOT / "configs" / f"{name}.py"), [])
    flags = SimpleNamespace(**{"seq_len": None, "per_chip_batch": None} | given)
    alone = resolve(plan._apply_what_if(flags, config, slices.find_slice("v5e:4x4")))
    assert [(phase.seq_len, phase.steps) for phase in alone.phases] == [(given["seq_len"], steps)]
    kept = (config.optim.warmup_steps, config.optim.warmup_tokens)
    found = (alone.optim.warmup_steps, alone.optim.warmup_tokens)
    assert (found == kept) == (place in ("ettin", "base"))


def test_rows_that_the_devices_of_a_chip_cannot_share_are_refused_by_their_flag():
    config, v3 = Config(), slices.find_slice("v3:4x4")
    flags = SimpleNamespace(per_chip_batch=3)
    with pytest.raises(ValueError, match=r"--per_chip_batch is 3, .* 32 devices.* multiple of 2$"):
        plan._check_per_chip_batch(flags, config, v3)
    # With a model axis both devices of a chip compute the same rows.
    plan._check_per_chip_batch(flags, with_setting(config, "mesh.preset", "tp"), v3)


@pytest.mark.long
@needs_libtpu
def test_a_budget_buys_the_only_size_for_so_little_text(tiny_store, tmp_path):
    out, picture = tmp_path / "budget.json", tmp_path / "loss.png"
    written = (f"--json_out={out}", f"--plot_out={picture}")
    config = tmp_path / "short.py"  # one phase: one compile
    config.write_text(
        "from bert_jax import config as c\n\n\ndef get_config(text=''):\n"
        "    return c.to_config_dict(c.Config(phases=(c.Phase(64, 99, batch_size=16),)))\n"
    )
    asked = ("--chip_hours=8", "--spot", "--config.optim.warmup_steps=9")
    sizes = (f"--config={config}", "--topology=v5e:2x2", f"--config.data.store={tiny_store}")
    command = [sys.executable, "-m", "bert_jax.plan", *sizes, *asked, *written]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (planned.returncode, planned.stderr) == (0, "")
    assert "the constants are ours, not of your text" in planned.stdout
    numbers = json.loads(out.read_text())
    assert numbers["chosen"]["size"] == "2 x 128" and numbers["chosen"]["speed"] == "compiled"
    low, high = numbers["interval"]
    assert 0 < low < numbers["predicted_heldout_loss"] < high
    assert 0 < numbers["dollars"] <= numbers["budget_dollars"] == pytest.approx(8 * 0.6)
    assert numbers["chosen"]["epochs"] <= 256 and numbers["tokens"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    train = planned.stdout.partition("to train it: ")[2]
    assert f"--config.data.store={tiny_store}" in train and "--workdir=" in train


def choose(monkeypatch, compiler, store, *flags):
    """The exit code of choosing a run of one size for v5e:2x2 with this compiler."""
    monkeypatch.setattr(plan, "make_compiler", lambda tpu_slice, screen: compiler)
    monkeypatch.setattr(plan.slices, "open_devices", lambda tpu_slice: [])
    size = [f"--config.model.{each}" for each in ("num_hidden_layers=2", "hidden_size=128")]
    given = ["--config=configs/auto.py", "--topology=v5e:2x2", f"--config.data.store={store}"]
    return plan.main([*given, *size, *flags])


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    ["--config.budget=2h", "--budget=19.2", "--chip_hours=8", "--config.budget=19.2usd@v5e:2x2"],
)
def test_a_budget_of_time_or_dollars_chooses_the_same_run(given, tiny_store, tmp_path, monkeypatch):
    compiler, written = Compiler(peak_share=4e-7), tmp_path / "chosen.py"
    prices = tmp_path / "prices.json"
    prices.write_text('{"prices": [{"chip": "v5e", "usd_on_demand": 2.4}]}')
    flags = f"--prices={prices}", given, f"--config_out={written}"
    assert choose(monkeypatch, compiler, tiny_store, *flags) == 0
    assert compiler.calls == [[(128, 32)], [(128, 64)]]
    chosen = overrides.load(Config, "chosen.py", lambda name: str(written), [])
    assert (chosen.budget, chosen.data.store) == ("", str(tiny_store))
    assert all(phase.batch_size % 4 == 0 for phase in chosen.phases)
    run = resolve(chosen, store=read_facts(chosen.data))
    secs = [step_secs_of(run, index, peak_share=4e-7) for index in range(2)]
    in_steps = sum(phase.steps * each for phase, each in zip(run.phases, secs, strict=True))
    # An evaluation reads the held-out rows, each in a third of the time of one in training.
    feed = StoreFeed([open_store(tiny_store)], run)
    rows = [feed.open_split(index, 0, HELDOUT).rows_in_epoch(0) for index in range(2)]
    in_evaluations = sum(
        count * held / phase.batch_size * each / 3
        for count, held, phase, each in zip((5, 2), rows, run.phases, secs, strict=True)
    )
    assert in_steps + in_evaluations == pytest.approx(AIM * 7200 - 300, rel=0.01)


@pytest.mark.slow
def test_a_chosen_run_whose_kernel_has_no_price_says_so(tiny_store, tmp_path, monkeypatch):
    written = tmp_path / "chosen.py"
    for compiler, is_named in ((OfAKernel, True), (Compiler, False)):
        flags = "--config.budget=2h", f"--config_out={written}"
        assert choose(monkeypatch, compiler(peak_share=4e-7), tiny_store, *flags) == 0
        assert ("a kernel of 2 x 128 has no price" in written.read_text()) == is_named


def test_a_budget_for_a_slice_whose_chips_hold_no_size_is_refused_with_its_memory(
    tiny_store, monkeypatch, capfd
):
    compiler = Compiler(too_large=(128,))
    assert choose(monkeypatch, compiler, tiny_store, "--config.budget=2h") == 2
    assert "needs 40.00 GiB per chip, and one of v5e:2x2 has 16.00" in capfd.readouterr().err


def keys(kind: Any) -> set[str]:
    """Names of the fields of a dataclass and of those in it."""
    found = set()
    for field in dataclasses.fields(kind):
        found.add(field.name)
        for inner in re.findall(r"\w+", str(field.type)):
            module = sys.modules[kind.__module__]
            if dataclasses.is_dataclass(getattr(module, inner, None)):
                found |= keys(getattr(module, inner))
    return found


def test_every_key_of_the_file_is_documented():
    page = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w.\[\]]+)`", page.partition("## Keys of")[2])
    documented = {word for name in names for word in re.findall(r"\w+", name)}
    assert {"exposed_secs", "usd", "attention", "temporaries", "path"} <= keys(Plan)
    assert {"interval", "is_spot", "peak_share", "epochs"} <= keys(BudgetPlan)
    assert (keys(Plan) | keys(BudgetPlan)) - documented == set()
