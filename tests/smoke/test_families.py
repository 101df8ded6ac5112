"""Each family of encoders from its pre-training, killed and resumed, to its export and its uses."""

import dataclasses
import json
import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.interop import huggingface, load
from bert_jax.interop.export import HIDDEN, MLM, NSP, REPLACED, compute_outputs, make_rows
from bert_jax.lab.kinds import score_masked_words
from bert_jax.lab.row_kind import MASKED_WORDS
from bert_jax.logging.console import Screen
from data_pipeline import build
from tests.faults.runs import ONE_PHASE, saved_steps, training

pytestmark = pytest.mark.long

SENTENCES = ["the cat sees a dog in the garden .", "a green bird", "my sister hears ."]
STEPS, KILLED_AFTER = 40, 20
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
    "layer_norm_eps": 1e-5,
}
ELECTRA = {
    "embedding_size": 16,
    "pooler_type": "gelu_erf",
    "generator_hidden_size": 16,
    "generator_num_attention_heads": 2,
}
XLNET = {
    "position_embedding_type": "relative",
    "embedding_norm": False,
    "mlm_transform": False,
    "type_vocab_size": 0,
}
DEBERTA = {
    "position_embedding_type": "disentangled",
    "position_buckets": 8,
    "type_vocab_size": 0,
    "pooler_type": "gelu_erf",
}
# Two phases of the same rows, the first of which learns from left to right.
TWO_OBJECTIVES = [
    "--config=configs/quickstart.py:model=causal_then_masked",
    *("--config.model.hidden_size=32", "--config.model.intermediate_size=64"),
    *("--config.model.num_hidden_layers=1", "--config.optim.warmup_steps=5"),
    *(f"--config.phases[{i}].seq_len=16" for i in (0, 1)),
    *(f"--config.phases[{i}].steps=20" for i in (0, 1)),
    *(f"--config.phases[{i}].batch_size=8" for i in (0, 1)),
    *(f"--config.phases[{i}].max_predictions_per_seq=3" for i in (0, 1)),
    *("--config.phases[1].restart_warmup_steps=5", "--config.eval.every_steps=100"),
    "--config.eval.examples=16",
]


@dataclasses.dataclass(frozen=True)
class Kind:
    """Name a run of a family, and the classes of transformers that its exports have."""

    model: Mapping[str, Any]  # as in docs/guide/training.md
    pretrained: str
    classifier: str = ""  # none if it is refused
    objective: str = "mlm"
    segments: str = "full_sentences"
    config: tuple[str, ...] = tuple(ONE_PHASE)
    guesses: str = "export"  # what fill_mask takes: the export, the generator's, or nothing
    skipped: str = ""  # parts that transformers' class has and the run lacks


KINDS = {
    "modernbert": Kind(MODERNBERT, "ModernBertForMaskedLM", "ModernBert"),
    "roberta": Kind({"type_vocab_size": 1}, "RobertaForMaskedLM", "Roberta", skipped="pooler"),
    "albert": Kind(
        {"embedding_size": 16, "share_layers": True, "num_hidden_layers": 2},
        "AlbertForPreTraining",
        "Albert",
        "mlm_nsp",
        "sop",
    ),
    "electra": Kind(ELECTRA, "ElectraForPreTraining", "Electra", "rtd", guesses="generator"),
    "xlnet": Kind(XLNET, "XLNetLMHeadModel", "XLNet", "permutation"),
    "distilbert": Kind(
        {"type_vocab_size": 0, "pooler_type": "relu"}, "DistilBertForMaskedLM", "DistilBert"
    ),
    "deberta": Kind(DEBERTA, "DebertaV2ForMaskedLM", "DebertaV2"),
    "left_to_right": Kind({}, "BertLMHeadModel", objective="causal", guesses=""),
    "causal_then_masked": Kind(
        {}, "BertForMaskedLM", "Bert", config=tuple(TWO_OBJECTIVES), skipped="pooler, nsp"
    ),
}
WITHOUT_SEGMENTS = ("ModernBertForMaskedLM", "RobertaForMaskedLM", "DistilBertForMaskedLM")
WITHOUT_SEGMENTS += ("DebertaV2ForMaskedLM",)


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


@pytest.fixture(scope="module", params=KINDS)
def exported(request, tiny_store, tmp_path_factory, forked):
    """A run of the family that was killed and resumed, its export, and a small table beside it."""
    name = request.param
    kind, folder = KINDS[name], tmp_path_factory.mktemp(name)
    store = request.getfixturevalue("padded_first") if name == "roberta" else tiny_store
    settings = {"hidden_act": "gelu_erf", **kind.model}
    flags = [*kind.config, *(f"--config.model.{key}={value}" for key, value in settings.items())]
    flags += [f"--config.data.store={store}", f"--config.data.segments={kind.segments}"]
    flags += [f"--config.objective={kind.objective}"]
    flags += [f"--config.checkpoint.every_steps={KILLED_AFTER}"]
    with training(*flags, workdir=folder / "run") as running:
        is_saved = lambda: max(saved_steps(folder / "run"), default=0) >= KILLED_AFTER  # noqa: E731
        running.wait_until(is_saved, f"step {KILLED_AFTER}")
        running.signal(signal.SIGKILL)
        running.codes()
    forked("bert_jax.train", *flags, f"--workdir={folder / 'run'}")
    assert json.loads((folder / "run" / "summary.json").read_text())["steps"] == STEPS
    convert(forked, folder / "run", folder / "export")
    (folder / "in.txt").write_text("\n".join(SENTENCES) + "\n")
    for split in ("train", "dev"):
        rows = [f"the cat sees {'a dog' if i % 2 else 'it'}\t{i % 2}" for i in range(12)]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tis_long", *rows]) + "\n")
    return kind, folder


def convert(forked, source, target, *flags, code=0):
    addresses = [f"--from=orbax:{source}", f"--to=hf:{target}"]
    return forked("bert_jax.convert", *addresses, *flags, code=code)


@pytest.fixture(scope="module")
def fine_tuned(exported, forked):
    """Three steps from the export on a table, and the export of that if there is one."""
    kind, folder = exported
    flags = ["--config=configs/finetune/table.py", "--config.data.text_column=text"]
    flags += ["--config.data.label_column=is_long", "--config.batch_size=4", "--config.epochs=1"]
    flags += [f"--config.init=hf:{folder / 'export'}", f"--config.data.dir={folder}"]
    forked("bert_jax.finetune", *flags, f"--workdir={folder / 'task'}")
    assert json.loads((folder / "task" / "summary.json").read_text())["steps"] == 3
    if kind.classifier:
        convert(forked, folder / "task", folder / "classifier")
    return folder


def score(forked, folder, name, *flags):
    given = [f"--checkpoint={folder / name}", "--examples=24", "--seq_len=16", *flags]
    forked("bert_jax.evaluate", *given, f"--output={folder / name}.jsonl")
    scores = json.loads((folder / f"{name}.jsonl").read_text())
    del scores["checkpoint"]
    return scores


def test_an_export_is_the_run(exported, forked):
    kind, folder = exported
    settings = json.loads((folder / "export" / huggingface.CONFIG).read_text())
    assert settings["architectures"] == [kind.pretrained]
    card = (folder / "export" / "README.md").read_text()
    assert f"tags:\n- {settings['model_type']}\n" in card
    tokenizer = json.loads((folder / "export" / "tokenizer_config.json").read_text())
    has_segments = kind.pretrained not in WITHOUT_SEGMENTS
    assert ("token_type_ids" in tokenizer["model_input_names"]) == has_segments
    absent = f"Not in this checkpoint: {kind.skipped}." if kind.skipped else ""
    assert absent in card and ("Not in this checkpoint" in card) == bool(absent)
    run, copy = (load.load(f"{folder}/{name}") for name in ("run", "export"))
    expected, found = name_leaves(run.params), name_leaves(copy.params)
    assert found.keys() == expected.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[path])
    if kind.segments == "sop":  # which an export of ALBERT does not say, and its kind does
        scores = score(forked, folder, "run")
        assert score(forked, folder, "export", f"--store={scores['store']}") == scores
        assert 0 < scores["nsp_accuracy"] < 1


def extract(forked, folder, *flags, code=0):
    output = folder / "vectors.npz"
    output.unlink(missing_ok=True)
    given = [f"--checkpoint={folder / 'export'}", f"--input={folder / 'in.txt'}"]
    done = forked("bert_jax.features", *given, f"--output={output}", *flags, code=code)
    return np.load(output)["vectors"] if code == 0 else done.stdout + done.stderr


def test_it_gives_vectors_and_guesses_words_or_says_why_not(exported, forked):
    kind, folder = exported
    if kind.objective == "causal":
        assert "so its [CLS] sees no other token" in extract(forked, folder, "--pool=cls", code=2)
    else:
        vectors = extract(forked, folder, "--pool=cls", "--layers=-2,-1")
        assert vectors.shape == (3, 2, 32) and np.isfinite(vectors).all()
    sentence = "the cat [MASK] a dog ."
    given = [f"--checkpoint={folder / 'export'}", sentence]
    if kind.guesses == "generator":
        refused = forked("bert_jax.fill_mask", *given, code=2)
        assert "is the encoder of replaced-token detection" in refused.stdout + refused.stderr
        scores = score_masked_words(str(folder / "run"), "", 16, Screen(is_writer=False))
        assert "detects replaced tokens" in scores[MASKED_WORDS]
        convert(forked, folder / "run", folder / "generator", "--part=generator")
        given[0] = f"--checkpoint={folder / 'generator'}"
    done = forked("bert_jax.fill_mask", *given, code=0 if kind.guesses else 2)
    if kind.guesses:
        guesses = done.stdout.splitlines()
        assert guesses[0] == sentence and guesses[1].count("%") == 5
    else:
        assert "and guesses no [MASK]" in done.stdout + done.stderr


def test_its_classifier_predicts_alike_from_run_and_export(exported, fine_tuned, forked):
    kind, _ = exported
    if not kind.classifier:
        refused = convert(forked, fine_tuned / "task", fine_tuned / "classifier", code=2)
        assert "a task's layer that reads the last token" in refused.stdout + refused.stderr
        return
    settings = json.loads((fine_tuned / "classifier" / huggingface.CONFIG).read_text())
    assert settings["architectures"] == [f"{kind.classifier}ForSequenceClassification"]
    lines = []
    for name in ("task", "classifier"):
        output = fine_tuned / f"{name}.tsv"
        given = [f"--checkpoint={fine_tuned / name}", f"--input={fine_tuned / 'dev.tsv'}"]
        forked("bert_jax.predict", *given, f"--output={output}")
        lines.append(output.read_text())
    assert lines[0] == lines[1] and lines[0].count("\n") == 13


def compute_theirs(transformers, torch, folder, name, rows):
    """The outputs of one of transformers' classes for rows of tokens, under our names."""
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    skipped = [key for key in info["missing_keys"] if not key.endswith("decoder.weight")]
    assert not info["unexpected_keys"] and all("pooler" in key or "cls." in key for key in skipped)
    given = {
        "input_ids": rows["input_ids"],
        "attention_mask": rows["input_mask"],
        "token_type_ids": rows["segment_ids"],
    }
    if getattr(model.config, "type_vocab_size", 0) < 2 and model.config.model_type != "xlnet":
        del given["token_type_ids"]
    given = {key: torch.tensor(array).long() for key, array in given.items()}
    with torch.no_grad():
        out = model.eval()(**given, output_hidden_states=True)
    outputs = {HIDDEN: out.hidden_states[-1].numpy()}
    if name == "ElectraForPreTraining":
        return outputs | {REPLACED: out.logits.numpy()}
    if name == "AlbertForPreTraining":
        outputs |= {NSP: out.sop_logits.numpy()}
    return outputs | {MLM: out["prediction_logits" if NSP in outputs else "logits"].numpy()}


def test_transformers_computes_the_same(exported, fine_tuned, forked):
    """Hidden vectors and heads of the export, features, and probabilities of the classifier."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    kind, folder = exported
    exports = {"export": kind.pretrained}
    if kind.guesses == "generator":
        exports["generator"] = "ElectraForMaskedLM"
        if not (folder / "generator").exists():
            convert(forked, folder / "run", folder / "generator", "--part=generator")
    for name, architecture in exports.items():
        checkpoint = load.load(f"hf:{folder / name}")
        rows = make_rows(checkpoint.vocabulary, checkpoint.config.max_position_embeddings)
        # A padding among the random tokens would shift RoBERTa's positions there.
        special, ids = checkpoint.vocabulary.special_ids, rows["input_ids"]
        rows["input_ids"] = np.where(ids == special["pad"], special["unk"], ids)
        if checkpoint.config.position_embedding_type != "relative":
            rows["segment_ids"] *= checkpoint.config.type_vocab_size > 1
        ours = compute_outputs(checkpoint, rows)
        ours[HIDDEN] = ours[f"{HIDDEN} of layer {checkpoint.config.num_hidden_layers}"]
        theirs = compute_theirs(transformers, torch, folder / name, architecture, rows)
        is_text = rows["input_mask"] == 1
        for output, expected in theirs.items():
            actual = ours[output]
            if output != NSP:
                expected, actual = expected[is_text], actual[is_text]
            assert np.abs(expected).max() > 0.01
            np.testing.assert_allclose(actual, expected, atol=1e-5, err_msg=f"{name} {output}")

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "export")
    model = getattr(transformers, kind.pretrained).from_pretrained(folder / "export").eval()
    with torch.no_grad():
        model(**tokenizer(SENTENCES[0], SENTENCES[1], return_tensors="pt"))  # has what it takes
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch, output_hidden_states=True).hidden_states[-1].numpy()
    mask = batch["attention_mask"].numpy()[:, :, None]
    expected = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
    np.testing.assert_allclose(extract(forked, folder, "--pool=mean"), expected, atol=1e-5)
    if not kind.classifier:
        return

    classes = transformers.AutoModelForSequenceClassification
    classifier = classes.from_pretrained(folder / "classifier").eval()
    texts = [line.split("\t")[0] for line in (folder / "dev.tsv").read_text().splitlines()[1:]]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = classifier(**batch).logits.softmax(-1).numpy()
    output = folder / "probabilities.tsv"
    flags = [f"--input={folder / 'dev.tsv'}", f"--output={output}"]
    forked("bert_jax.predict", f"--checkpoint={folder / 'classifier'}", *flags)
    header, *rows = (line.split("\t") for line in output.read_text().splitlines())
    columns = [header.index(f"probability_{label}") for label in ("0", "1")]
    ours = np.array([[float(row[column]) for column in columns] for row in rows])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
