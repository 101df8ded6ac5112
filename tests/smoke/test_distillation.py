"""A student from its teacher: killed, resumed, exported, and refused if its teacher changed."""

import json
import shutil
import signal

import jax
import numpy as np
import pytest

from bert_jax.interop import load
from bert_jax.interop.pretrained import place_model
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows, Heads
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


STUDENTS = {
    "distillation": ["--config.model.type_vocab_size=0", "--config.model.pooler_type=relu"],
    "relation_distillation": ["--config.model.hidden_size=48", "--config.distill.relation_heads=8"],
}
HEADS = {
    "distillation": Heads(nsp=False, pooler=False),
    "relation_distillation": Heads(mlm=False, nsp=False, pooler=False),
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
    expected = numbers_of(folder / "unbroken")
    assert numbers_of(folder / "killed") == expected
    last = expected[40, "heldout"]
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


def test_transformers_computes_the_same(student, forked):
    """Hidden vectors of both, and of DistilBERT the logits of every token."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    objective, folder, _ = student
    export = folder / "to_compare"
    forked("bert_jax.convert", f"--from=orbax:{folder / 'unbroken'}", f"--to=hf:{export}")
    model = getattr(transformers, CLASSES[objective]).from_pretrained(export).eval()
    placed = place_model(
        load.load(f"orbax:{folder / 'unbroken'}"), HEADS[objective], jax.devices()[:1]
    )
    ids = np.random.default_rng(0).integers(5, 150, (3, 16)).astype(np.int32)
    mask = np.int32(np.arange(16) < np.array([[16], [11], [7]]))

    @jax.jit
    def compute(params):
        bound = placed.model.bind(params)
        hidden = bound.encode(EncoderRows(ids, np.zeros_like(ids), hide_padding(mask)))
        is_encoder = objective == "relation_distillation"
        return hidden if is_encoder else bound.compute_target_logits(hidden)

    ours = np.asarray(compute(placed.params))
    with torch.no_grad():
        made = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))
    theirs = (made.last_hidden_state if "last_hidden_state" in made else made.logits).numpy()
    ours = ours[..., : theirs.shape[-1]]
    np.testing.assert_allclose(ours[mask > 0], theirs[mask > 0], atol=1e-5)
