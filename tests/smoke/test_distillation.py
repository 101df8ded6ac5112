"""A student from its teacher: killed, resumed, exported, and refused if its teacher changed."""

import json
import shutil
import signal

import pytest

from tests.faults.runs import ONE_PHASE, lines_of, saved_steps, training

pytestmark = pytest.mark.long


STUDENTS = {
    "distillation": ["--config.model.type_vocab_size=0", "--config.model.pooler_type=relu"],
    "relation_distillation": ["--config.model.hidden_size=48", "--config.distill.relation_heads=8"],
}
CLASSES = {"distillation": "DistilBertForMaskedLM", "relation_distillation": "BertModel"}


@pytest.fixture(scope="module", params=STUDENTS)
def student(request, tiny_store, trained, tmp_path_factory, forked):
    """A run that was killed and resumed, and one that was not; and the flags of both."""
    folder = tmp_path_factory.mktemp(request.param)
    teacher = folder / "teacher"
    shutil.copytree(trained, teacher)
    flags = [*ONE_PHASE, f"--config.data.store={tiny_store}", f"--config.teacher={teacher}"]
    flags += [f"--config.objective={request.param}", *STUDENTS[request.param], "--config.seed=5"]
    if request.param == "distillation":
        flags += [f"--config.init={teacher}"]
    flags += ["--config.data.segments=full_sentences"]
    flags += ["--config.checkpoint.every_steps=20", "--config.log_every_steps=20"]
    forked("bert_jax.train", *flags, f"--workdir={folder / 'unbroken'}")
    with training(*flags, workdir=folder / "killed") as running:
        running.wait_until(lambda: max(saved_steps(folder / "killed"), default=0) >= 20, "20")
        running.signal(signal.SIGKILL)
        running.codes()
    return request.param, folder, flags


def test_a_killed_student_resumes_bit_for_bit_and_keeps_its_teacher(student, trained, forked):
    objective, folder, flags = student
    teacher = folder / "teacher"
    if objective == "distillation":
        shutil.rmtree(teacher / "checkpoints" / "40")
        refused = forked("bert_jax.train", *flags, f"--workdir={folder / 'killed'}", code=2)
        assert "teacher's weights" in refused.stdout + refused.stderr
        shutil.copytree(trained / "checkpoints" / "40", teacher / "checkpoints" / "40")
    forked("bert_jax.train", *flags, f"--workdir={folder / 'killed'}")
    expected = lines_of(folder / "unbroken")
    assert lines_of(folder / "killed") == expected
    last = [line for line in expected if line["split"] == "heldout"][-1]
    assert last["step"] == 40
    if objective == "distillation":
        assert last["soft_loss"] > 0 and last["cosine_loss"] > 0
        sum = 5 * last["soft_loss"] + 2 * last["mlm_loss"] + last["cosine_loss"]
    else:
        assert all(last[f"{kind}_loss"] > 0 for kind in ("query", "key", "value"))
        sum = last["query_loss"] + last["key_loss"] + last["value_loss"]
    assert last["loss"] == pytest.approx(sum)


def test_its_export_has_the_class_of_its_shape(student, forked):
    objective, folder, _ = student
    export = folder / "export"
    forked("bert_jax.convert", f"--from=orbax:{folder / 'unbroken'}", f"--to=hf:{export}")
    settings = json.loads((export / "config.json").read_text())
    assert settings["architectures"] == [CLASSES[objective]]
