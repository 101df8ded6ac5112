"""A BERT from its pre-training to its uses, each by its entry: export, fine-tuning, vectors."""

import json

import numpy as np
import pytest

from tests.faults.runs import ONE_PHASE

SENTENCES = ["the cat sees a dog in the garden .", "a green bird", "my sister hears"]
TASK = ["--config=configs/finetune/table.py", "--config.data.text_column=text"]
TASK += ["--config.data.label_column=is_long", "--config.epochs=2", "--config.batch_size=8"]


@pytest.fixture(scope="module")
def exported(forked, tiny_store, tmp_path_factory):
    """A run, and beside it the same in Hugging Face's format and vectors from there."""
    folder = tmp_path_factory.mktemp("way")
    run, export = folder / "run", folder / "export"
    forked("bert_jax.train", *ONE_PHASE, f"--config.data.store={tiny_store}", f"--workdir={run}")
    forked("bert_jax.convert", f"--from=orbax:{run}", f"--to=hf:{export}")
    (folder / "sentences.txt").write_text("\n".join(SENTENCES) + "\n")
    forked("bert_jax.features", f"--checkpoint=hf:{export}", *vectors_of(folder, "from_export"))
    return folder


def vectors_of(folder, name):
    return [f"--input={folder / 'sentences.txt'}", f"--output={folder / name}.npz", "--pool=mean"]


def test_it_is_fine_tuned_from_its_export(forked, exported, tmp_path):
    rows = ["text\tis_long"]
    rows += [f"the cat sees {'a dog in the garden' if i % 2 else 'it'}\t{i % 2}" for i in range(40)]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    given = [*TASK, f"--config.init=hf:{exported / 'export'}", f"--config.data.dir={tmp_path}"]
    forked("bert_jax.finetune", *given, f"--workdir={tmp_path / 'tuned'}")
    summary = json.loads((tmp_path / "tuned" / "summary.json").read_text())
    assert summary["steps"] == 10
    assert 0.0 <= summary["heldout_dev_accuracy"] <= 1.0
    assert list((tmp_path / "tuned" / "predictions").iterdir())
    shown = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert shown["config"]["data"]["max_seq_length"] == 64  # the positions of the model


def test_it_is_scored_on_rows_of_its_own_length(forked, exported, tmp_path):
    given = [f"--checkpoint={exported / 'run'}", "--examples=16"]
    forked("bert_jax.evaluate", *given, f"--output={tmp_path / 'scores.jsonl'}")
    assert json.loads((tmp_path / "scores.jsonl").read_text())["seq_len"] == 64
    said = forked("bert_jax.evaluate", *given, "--seq_len=65", code=2).stderr
    assert "--seq_len is 65" in said and "64 positions" in said


def test_transformers_reads_it_and_gives_the_same_vectors(exported):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = transformers.AutoModel.from_pretrained(exported / "export").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported / "export")
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state.numpy()
    mask = batch["attention_mask"].numpy()[:, :, None]
    expected = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
    found = np.load(exported / "from_export.npz")["vectors"]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_its_vectors_are_those_of_the_run(forked, exported):
    given = vectors_of(exported, "from_run")
    forked("bert_jax.features", f"--checkpoint=orbax:{exported / 'run'}", *given)
    vectors = [np.load(exported / f"{name}.npz")["vectors"] for name in ("from_run", "from_export")]
    assert vectors[0].shape == (len(SENTENCES), 32)
    np.testing.assert_array_equal(*vectors)
