"""python -m bert_jax.doctor: each part on sound and on faulty machines, and the command as used."""

import dataclasses
import errno
import functools
import json
import os
import pathlib
import shutil
from types import SimpleNamespace

import jax
import pytest

from bert_jax import doctor
from bert_jax.benchmarking import checks
from bert_jax.benchmarking.checks import FINE, SKIPPED, WRONG
from bert_jax.config import Config, DistillConfig, MeshConfig, ModelConfig, Phase, resolve
from bert_jax.model import attention
from bert_jax.model.attention import verify
from bert_jax.parallel import chips, mesh
from bert_jax.runtime import startup
from data_pipeline.io import Refused
from tests.bert_jax import joined

TINY = ModelConfig(
    vocab_size=256,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
)
KERNEL_SIZES = ModelConfig(hidden_size=128, num_attention_heads=2)
SQUARE = [(x, y, 0) for x in range(4) for y in range(4)]  # the chips of v5e:4x4


def test_an_accelerator_that_jax_does_not_use_is_wrong(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    assert checks.check_software(tmp_path).outcome == FINE
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    verdict = checks.check_software(tmp_path)
    assert verdict.outcome == WRONG
    assert "dev/nvidia0" in verdict.sentence
    assert "'.[gpu]'" in verdict.sentence


def test_storage_is_measured_and_left_as_it_was(tmp_path):
    verdict = checks.check_storage(str(tmp_path / "new" / "run"), state_bytes=10, megabytes=1)
    assert verdict.outcome == FINE
    assert verdict.numbers["write_bytes_per_sec"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_new_folder_that_another_worker_writes_to_stays(tmp_path, monkeypatch):
    other = tmp_path / "run" / "doctor-other"
    monkeypatch.setattr(os, "fsync", lambda descriptor: other.touch())
    assert checks.check_storage(str(tmp_path / "run"), 10, megabytes=1).outcome == FINE
    assert list(other.parent.iterdir()) == [other]


def test_a_disk_without_room_for_two_checkpoints_is_wrong(tmp_path, monkeypatch):
    usage = SimpleNamespace(free=15 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    verdict = checks.check_storage(str(tmp_path), state_bytes=10**10, megabytes=1)
    assert verdict.outcome == WRONG
    assert "15.00 GB" in verdict.sentence


def test_a_full_disk_is_named_with_what_to_do_and_left_as_it_was(tmp_path, monkeypatch):
    def fill(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill)
    place = str(tmp_path / "run")
    parts = {"storage": lambda: checks.check_storage(place, state_bytes=10, megabytes=1)}
    verdict = doctor.check_parts(parts, doctor.Screen(is_writer=True), 60.0)["storage"]
    assert verdict.outcome == WRONG
    assert verdict.sentence.startswith(f"{place}: ")
    assert "GB free); make room" in verdict.sentence
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_cannot_be_read_keeps_no_file(monkeypatch):
    objects = {}

    class UnreadableBucket:
        def __init__(self, address):
            self.write, self.delete = objects.__setitem__, objects.__delitem__

        def read(self, name):
            raise PermissionError("gs://bucket/run: reading was refused")

    monkeypatch.setattr(checks, "Bucket", UnreadableBucket)
    with pytest.raises(PermissionError, match="reading was refused"):
        checks.check_storage("gs://bucket/run", state_bytes=10, megabytes=1)
    assert objects == {}


def test_the_last_line_claims_no_more_than_was_checked():
    def summarize(**outcomes):
        results = {name: checks.CheckResult(outcome, "") for name, outcome in outcomes.items()}
        return doctor.summarize(results)

    assert summarize(a=SKIPPED, b=SKIPPED) == "nothing was checked; 2 skipped"
    assert summarize(a=FINE, b=SKIPPED) == "1 part checked, nothing wrong; 1 skipped"
    assert summarize(a=FINE, b=WRONG) == "2 parts checked, wrong: b; 0 skipped"


@pytest.mark.parametrize(("load", "is_busy"), [(2.0, False), (10.4, True)])
def test_a_busy_machine_is_said_to_be_one(monkeypatch, load, is_busy):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    sentence = checks.check_software(pathlib.Path("/nowhere")).sentence
    assert ("busy (load 10 on 2 cores)" in sentence) == is_busy


def test_the_rate_of_a_slow_input_counts_each_batch_that_was_waited_for(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checks.time, "perf_counter", lambda: now[0])

    def make_batches(index, first, rows):
        while True:
            now[0] += 3.0
            yield {}

    config = Config(phases=(Phase(128, 10, batch_size=6),))
    source = SimpleNamespace(train_batches=make_batches)
    assert checks.check_input(config, source, None, 5.0).numbers["rows_per_sec"] == 12 / 6


def test_the_pace_of_a_slow_and_a_fast_step_can_be_read():
    assert checks.describe_pace(80.4626, 0.19885) == "80.5 s, 0.2 rows per second"
    assert checks.describe_pace(0.0105, 6095.2) == "10.5 ms, 6,095 rows per second"


def test_collectives_are_timed_between_all_devices():
    assert checks.check_collectives(mesh.make_mesh(MeshConfig()), megabytes=1).numbers["psum"] > 0
    alone = mesh.make_mesh(MeshConfig(), jax.devices()[:1])
    assert checks.check_collectives(alone).outcome == SKIPPED
    whole = mesh.make_mesh(MeshConfig(preset="tp", model_size=jax.device_count()))
    assert checks.check_collectives(whole, megabytes=1).outcome == SKIPPED  # a batch is not cut


def test_losses_are_compared_on_rows_that_any_number_of_devices_divides(monkeypatch):
    asked = []
    monkeypatch.setattr(checks, "_train_small", lambda of, rows: asked.append(rows) or [1.0])
    assert checks.check_losses(jax.devices()[:3], jax.devices()[3:4]).outcome == FINE
    assert asked == [9, 9]


@pytest.mark.long
@pytest.mark.parametrize(
    ("objective", "distill"),
    [
        ("distillation", DistillConfig()),
        ("relation_distillation", DistillConfig(relation_heads=2)),
    ],
)
def test_the_step_of_a_student_is_timed_with_its_teacher(objective, distill):
    phase = Phase(16, 10**6, batch_size=jax.device_count())
    student = {"objective": objective, "distill": distill, "teacher": "hf:DIR"}
    config = resolve(Config(model=TINY, phases=(phase,), **student))
    flags = SimpleNamespace(step_secs=0.01, workdir="")
    result = doctor._list_parts(config, None, TINY, flags)["step"]()
    assert result.numbers["rows_per_sec"] > 0


def test_a_host_feeds_the_rows_that_its_devices_hold(monkeypatch):
    """On a model axis over four hosts each of them makes every row."""
    step = checks.CheckResult(FINE, "", {"rows_per_sec": 8.0})
    monkeypatch.setattr(doctor.processes, "count", lambda: 4)
    monkeypatch.setattr(checks, "check_step", lambda config, secs, teacher: step)
    monkeypatch.setattr(checks, "check_input", lambda config, source, rate, secs: rate)
    config = Config(phases=(Phase(128, 10, batch_size=16),))
    parts = doctor._list_parts(config, None, None, SimpleNamespace(step_secs=1.0, workdir=""))
    parts["step"]()
    assert parts["input"]() == 8.0


ONE_FAILS = """
import sys
from bert_jax import doctor
from data_pipeline.io import Refused
address, count, number = sys.argv[1:]

def fail(config, screen):
    raise Refused("the disk is absent")

if number == "1":
    doctor.setup.open_feed = fail
flags = [f"--coordinator_address={address}", f"--num_processes={count}", f"--process_id={number}"]
sys.exit(doctor.main(["--config=configs/tiny.py", "--multihost", *flags]))
"""


@pytest.mark.long
def test_a_worker_that_fails_ends_the_others():
    ended = joined.run_apart(ONE_FAILS)
    assert [each.code for each in ended] == [2, 2], ended
    assert "has ended with exit code 2: error: the disk is absent" in ended[0].err


@pytest.mark.parametrize(("name", "gbytes"), [("v5e", "two links have 100"), ("H100", "have 450")])
def test_collectives_are_compared_with_two_links_or_all_of_a_gpus(monkeypatch, name, gbytes):
    chip = next(each for each in (*chips.TPUS, *chips.GPUS) if each.name == name)
    monkeypatch.setattr(chips, "find_chip", lambda kind: chip)
    sentence = checks.check_collectives(mesh.make_mesh(MeshConfig()), megabytes=1).sentence
    assert f"{gbytes} GB/s" in sentence


@pytest.mark.parametrize(
    ("kind", "coordinates", "num_slices", "name"),
    [
        ("TPU v5 lite", SQUARE, 1, "v5e:4x4"),
        ("TPU v5 lite", SQUARE * 2, 2, "v5e:4x4"),  # each slice counts from 0
        ("TPU v5 lite", SQUARE * 2, 1, None),
        ("TPU v5 lite", SQUARE[8:], 1, None),  # half of a slice
        ("TPU v4", [(x, y, z) for x in (0, 1) for y in (0, 1) for z in range(4)], 1, "v4:2x2x4"),
        ("TPU v5 lite", [(x, 0, 0) for x in range(3)], 1, None),
        ("cpu", [()], 1, None),
    ],
)
def test_the_slice_of_devices_is_known_by_their_coordinates(kind, coordinates, num_slices, name):
    devices = [SimpleNamespace(device_kind=kind, coords=each) for each in coordinates]
    tpu_slice = checks.find_slice_of(devices, num_slices)
    assert (tpu_slice and tpu_slice.name) == name
    assert tpu_slice is None or tpu_slice.devices == len(devices)


def test_a_worker_of_several_is_refused_alone(monkeypatch, capsys):
    rank = startup.Rank("10.0.0.2:8482", 4, 1)
    monkeypatch.setattr(startup, "find_rank", lambda *flags: rank)
    assert doctor.main(["--config=configs/tiny.py"]) == 2
    assert "worker 1 of 4" in capsys.readouterr().err


def test_without_a_config_a_cpu_is_checked_with_the_small_one(monkeypatch, capsys):
    lengths = []

    def stop(config, screen):
        lengths.append(config.phases[0].seq_len)
        raise Refused("stop")

    monkeypatch.setattr(doctor.setup, "open_feed", stop)
    assert doctor.main([]) == 2
    assert "configs/quickstart.py" in capsys.readouterr().out
    assert doctor.main(["--config.phases[0].seq_len=48"]) == 2
    assert lengths == [32, 48]


def test_a_part_that_fails_is_a_verdict_and_the_others_go_on(capsys):
    def fail():
        raise OSError("the disk is gone")

    fine = checks.CheckResult(FINE, "as it should be")
    screen = doctor.Screen(is_writer=True)
    results = doctor.check_parts({"first": fail, "second": lambda: fine}, screen, 60.0)
    assert results == {"first": checks.CheckResult(WRONG, "the disk is gone"), "second": fine}
    late = doctor.check_parts({"second": lambda: fine}, screen, -1.0)["second"]
    assert late.outcome == SKIPPED
    assert "limit_secs" in late.sentence


def test_a_part_that_one_worker_has_no_time_for_is_skipped_by_all(monkeypatch):
    monkeypatch.setattr(doctor.processes, "agree", lambda name, own, secs: [own, "True"])
    parts = {"step": lambda: pytest.fail("this worker would wait for the other one forever")}
    results = doctor.check_parts(parts, doctor.Screen(is_writer=True), 60.0)
    assert results["step"].outcome == SKIPPED


def test_a_kernel_that_differs_is_wrong(monkeypatch):
    devices = mesh.make_mesh(MeshConfig(), jax.devices()[:1])
    shape = verify.AttentionShape(128, 2, 64, 0, False, 0.1, 0.0)
    asked = []

    def find(*arguments):
        asked.append(arguments[:4])
        return [(attention.KERNEL, shape)]

    monkeypatch.setattr(checks, "find_kernels_of", find)
    for error, outcome in ((1.9, FINE), (2.1, WRONG)):
        check = verify.KernelCheck(attention.KERNEL, shape, {"output": error}, 0)
        monkeypatch.setattr(verify, "check_kernel", lambda *arguments, check=check: check)
        verdict = checks.check_kernel(devices, KERNEL_SIZES, 128)
        assert verdict.outcome == outcome
        assert verdict.numbers[attention.KERNEL]["errors"] == {"output": error}
    assert asked == [("auto", devices, 128, KERNEL_SIZES)] * 2


@pytest.mark.long
def test_the_command_checks_this_machine(tmp_path, monkeypatch, capsys):
    report = tmp_path / "doctor.json"
    monkeypatch.setattr(checks, "_STEPS", 4)
    small = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
    monkeypatch.setattr(checks, "_SMALL", dataclasses.replace(checks._SMALL, **small))
    quick = functools.partial(checks.check_collectives, megabytes=1)
    monkeypatch.setattr(checks, "check_collectives", quick)
    given = [
        "--config=configs/tiny.py",
        "--config.model.vocab_size=64",
        "--config.model.hidden_size=16",
        "--config.model.num_hidden_layers=1",
        "--config.model.intermediate_size=32",
        "--step_secs=0.1",
    ]
    assert doctor.main([*given, f"--json_out={report}", f"--workdir={tmp_path / 'run'}"]) == 0
    parts = {part["part"]: part for part in json.loads(report.read_text())["parts"]}
    outcomes = {name: part["outcome"] for name, part in parts.items()}
    assert outcomes == {
        "software": FINE,
        "storage": FINE,
        "collectives": FINE,
        "attention kernel at 64": SKIPPED,
        "losses": FINE,
        "step": FINE,
        "input": SKIPPED,
    }
    assert len(parts["losses"]["numbers"]["losses"]) == 4
    screen = capsys.readouterr()
    assert all(name in screen.out + screen.err for name in parts)
    assert "5 parts checked, nothing wrong; 2 skipped" in screen.out + screen.err
