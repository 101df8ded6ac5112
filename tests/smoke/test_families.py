"""Each family of encoders from its pre-training, killed and resumed, to its export and its uses."""

import json
import signal

import numpy as np
import pytest

from bert_jax.interop import huggingface, load
from bert_jax.interop.tensor_names import by_path
from data_pipeline import build
from tests.faults.runs import ONE_PHASE, saved_steps, training

pytestmark = pytest.mark.slow

SENTENCES = ["the cat sees a dog in the garden .", "a green bird", "my sister hears ."]
MODERNBERT = {
    "position_embedding_type": "rotary",
    "local_attention": 6,
    "global_attn_every_n_layers": 2,
    "num_hidden_layers": 2,
    "norm_position": "pre",
    "norm_bias": False,
    "linear_bias": False,
    "gated_mlp": True,
    "type_vocab_size": 0,
    "pooler_type": "mlm_transform",
    "classifier_pooling": "mean",
    "dropout_sites": "attention",
}
# As in docs/guide/training.md.
SHAPES = {
    "modernbert": MODERNBERT,
    "roberta": {"type_vocab_size": 1},
    "albert": {"embedding_size": 16, "share_layers": True, "num_hidden_layers": 2},
    "electra": {"embedding_size": 16, "pooler_type": "gelu_erf"},
    "distilbert": {"type_vocab_size": 0, "pooler_type": "relu"},
}
CLASSES = {
    "modernbert": "ModernBert",
    "roberta": "Roberta",
    "albert": "Albert",
    "electra": "Electra",
    "distilbert": "DistilBert",
}


@pytest.fixture(scope="module")
def padded_first(tiny_store, tmp_path_factory):
    """A store whose vocabulary has [PAD] at 1, from which RoBERTa counts positions."""
    folder = tmp_path_factory.mktemp("roberta")
    words = (tiny_store / "vocab.txt").read_text().splitlines()
    words[0], words[1] = words[1], words[0]
    assert words[1] == "[PAD]"
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    arguments = [f"--input={tiny_store.parent / 'text.txt'}", "--sentences=lines", "--workers=1"]
    arguments += [f"--vocab={folder / 'vocab.txt'}", f"--output={folder / 'store'}"]
    assert build.main([*arguments, "--holdout=0.1"]) == 0
    return folder / "store"


@pytest.fixture(scope="module", params=SHAPES)
def exported(request, tiny_store, tmp_path_factory, forked):
    """A run of the family that was killed and resumed, its export, and a small table beside it."""
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    store = request.getfixturevalue("padded_first") if kind == "roberta" else tiny_store
    data = {"store": store, "segments": "sop" if kind == "albert" else "full_sentences"}
    flags = [*ONE_PHASE, *(f"--config.data.{name}={value}" for name, value in data.items())]
    shape = {"hidden_act": "gelu_erf", "layer_norm_eps": 1e-5 if kind == "modernbert" else 1e-12}
    flags += [f"--config.model.{name}={value}" for name, value in (shape | SHAPES[kind]).items()]
    flags += ["--config.checkpoint.every_steps=20"]
    flags += [f"--config.objective={'mlm_nsp' if kind == 'albert' else 'mlm'}"]
    with training(*flags, workdir=folder / "run") as running:
        running.wait_until(lambda: max(saved_steps(folder / "run"), default=0) >= 20, "step 20")
        running.signal(signal.SIGKILL)
        running.codes()
    forked("bert_jax.train", *flags, f"--workdir={folder / 'run'}")
    assert json.loads((folder / "run" / "summary.json").read_text())["steps"] == 40
    convert(forked, folder / "run", folder / "export")
    (folder / "in.txt").write_text("\n".join(SENTENCES) + "\n")
    for split in ("train", "dev"):
        rows = [f"the cat sees {'a dog' if i % 2 else 'it'}\t{i % 2}" for i in range(12)]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tis_long", *rows]) + "\n")
    return kind, folder


def convert(forked, source, target, *flags):
    forked("bert_jax.convert", f"--from=orbax:{source}", f"--to=hf:{target}", *flags)


@pytest.fixture(scope="module")
def fine_tuned(exported, forked):
    """Three steps from the export on a table, and the export of that."""
    _, folder = exported
    flags = ["--config=configs/finetune/table.py", "--config.data.text_column=text"]
    flags += ["--config.data.label_column=is_long", "--config.batch_size=4", "--config.epochs=1"]
    flags += [f"--config.init=hf:{folder / 'export'}", f"--config.data.dir={folder}"]
    forked("bert_jax.finetune", *flags, f"--workdir={folder / 'task'}")
    assert json.loads((folder / "task" / "summary.json").read_text())["steps"] == 3
    convert(forked, folder / "task", folder / "classifier")
    return folder


def test_an_export_is_the_run_and_gives_the_same_vectors(exported, forked):
    kind, folder = exported
    settings = json.loads((folder / "export" / huggingface.CONFIG).read_text())
    assert settings["model_type"] == kind
    card = (folder / "export" / "README.md").read_text()
    assert f"tags:\n- {kind}\n" in card
    # The others' classes have nothing that the run lacks.
    assert ("Not in this checkpoint: pooler." in card) == (kind == "roberta")
    run, copy = (load.load(f"{folder}/{name}") for name in ("run", "export"))
    expected, found = by_path(run.params), by_path(copy.params)
    assert found.keys() == expected.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[path])
    vectors = []
    for name in ("run", "export"):
        output = folder / f"{name}.npz"
        flags = [f"--input={folder / 'in.txt'}", "--pool=cls", "--layers=-2,-1"]
        forked("bert_jax.features", f"--checkpoint={folder / name}", *flags, f"--output={output}")
        vectors.append(np.load(output)["vectors"])
    assert vectors[0].shape == (3, 2, 32) and np.isfinite(vectors[0]).all()
    np.testing.assert_array_equal(*vectors)


def test_its_classifier_predicts_alike_from_run_and_export(exported, fine_tuned, forked):
    kind, _ = exported
    settings = json.loads((fine_tuned / "classifier" / huggingface.CONFIG).read_text())
    assert settings["architectures"] == [f"{CLASSES[kind]}ForSequenceClassification"]
    lines = []
    for name in ("task", "classifier"):
        output = fine_tuned / f"{name}.tsv"
        given = [f"--checkpoint={fine_tuned / name}", f"--input={fine_tuned / 'dev.tsv'}"]
        forked("bert_jax.predict", *given, f"--output={output}")
        lines.append(output.read_text())
    assert lines[0] == lines[1] and lines[0].count("\n") == 13


def test_transformers_computes_the_same(exported, fine_tuned, forked):
    """Hidden vectors of the export, and probabilities of the classifier."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    kind, folder = exported
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "export")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder / "export").eval()
    assert type(model).__name__ == f"{CLASSES[kind]}ForMaskedLM"
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        hidden = model(**batch, output_hidden_states=True).hidden_states[-1].numpy()
    output = folder / "hidden.npz"
    flags = [f"--input={folder / 'in.txt'}", "--pool=mean", f"--output={output}"]
    forked("bert_jax.features", f"--checkpoint={folder / 'export'}", *flags)
    mask = batch["attention_mask"].numpy()[:, :, None]
    expected = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
    np.testing.assert_allclose(np.load(output)["vectors"], expected, atol=1e-5)

    classes = transformers.AutoModelForSequenceClassification
    classifier = classes.from_pretrained(folder / "classifier").eval()
    texts = [line.split("\t")[0] for line in (folder / "dev.tsv").read_text().splitlines()[1:]]
    batch = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        theirs = classifier(**batch).logits.softmax(-1).numpy()
    output = folder / "probabilities.tsv"
    flags = [f"--input={folder / 'dev.tsv'}", f"--output={output}"]
    forked("bert_jax.predict", f"--checkpoint={folder / 'classifier'}", *flags)
    header, *rows = (line.split("\t") for line in output.read_text().splitlines())
    columns = [header.index(f"probability_{label}") for label in ("0", "1")]
    ours = np.array([[float(row[column]) for column in columns] for row in rows])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
