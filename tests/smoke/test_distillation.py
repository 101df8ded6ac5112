"""A student from its teacher: killed and resumed, and a teacher that changed is refused."""

import shutil
import signal

import pytest

from bert_jax.train_step.metrics import TIMINGS
from tests.faults.runs import ONE_PHASE, lines_of, saved_steps, training

pytestmark = pytest.mark.slow


def numbers_of(workdir):
    """The metrics of a run without what depends on its time, the last line of each step."""
    lines = [
        {name: value for name, value in line.items() if name not in TIMINGS}
        for line in lines_of(workdir)
    ]
    return {(line["step"], line["split"]): line for line in lines}


def test_a_killed_student_resumes_bit_for_bit_and_keeps_its_teacher(
    tiny_store, trained, tmp_path, forked
):
    teacher = tmp_path / "teacher"
    shutil.copytree(trained, teacher)
    flags = [*ONE_PHASE, f"--config.data.store={tiny_store}", "--config.objective=distillation"]
    flags += [f"--config.teacher={teacher}", f"--config.init={teacher}", "--config.seed=5"]
    flags += ["--config.model.type_vocab_size=0", "--config.data.segments=full_sentences"]
    flags += ["--config.checkpoint.every_steps=20", "--config.log_every_steps=20"]
    forked("bert_jax.train", *flags, f"--workdir={tmp_path / 'unbroken'}")
    with training(*flags, workdir=tmp_path / "killed") as running:
        running.wait_until(lambda: max(saved_steps(tmp_path / "killed"), default=0) >= 20, "20")
        running.signal(signal.SIGKILL)
        running.codes()
    shutil.rmtree(teacher / "checkpoints" / "40")
    refused = forked("bert_jax.train", *flags, f"--workdir={tmp_path / 'killed'}", code=2)
    assert "teacher's weights" in refused.stdout + refused.stderr
    shutil.copytree(trained / "checkpoints" / "40", teacher / "checkpoints" / "40")
    forked("bert_jax.train", *flags, f"--workdir={tmp_path / 'killed'}")
    expected = numbers_of(tmp_path / "unbroken")
    assert numbers_of(tmp_path / "killed") == expected
    last = expected[40, "heldout"]
    assert last["soft_loss"] > 0 and last["cosine_loss"] > 0
    assert {name for name in last if name.endswith("_perplexity")} == {"mlm_perplexity"}
    assert last["loss"] == pytest.approx(
        5 * last["soft_loss"] + 2 * last["mlm_loss"] + last["cosine_loss"]
    )
