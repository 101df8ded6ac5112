"""The commands that take a checkpoint of anybody's: convert, features, evaluate, fill_mask, ner."""

import functools
import json
import pathlib
import shutil
import subprocess
import sys

import gcsfs
import numpy as np
import pytest
import pytrec_eval

from bert_jax import score
from bert_jax.interop import export, load
from bert_jax.tasks.squad.data import Paragraph
from tests.bert_jax import small_checkpoints
from tests.bert_jax.tasks.squad_samples import question, written
from tests.faults.bucket_server import NAME, fake_bucket
from tests.faults.runs import ROOT, environment

pytestmark = pytest.mark.long

TOKENS = ["[CLS]", "a", "cat", "sees", "[SEP]", "[CLS]", "[SEP]"]


def test_parts_that_are_missing_or_of_no_bert_are_said(forked, tmp_path):
    more = {"linear.weight": np.ones((7, 14), np.float32)}
    tensors = small_checkpoints.tensors(has_heads=False)
    given = small_checkpoints.write(tmp_path / "given", tensors | more)
    done = forked("bert_jax.convert", f"--from=hf:{given}", f"--to=orbax:{tmp_path / 'alone'}")
    words = "without MLM head, NSP head: skipped; --initialize_missing initializes"
    assert words in done.stdout
    assert "no part of a BERT, and skipped: linear.weight\n" in done.stdout
    assert "  hidden        differ by 0.0e+00 at most\n" in done.stdout
    said = forked("bert_jax.evaluate", f"--checkpoint=orbax:{tmp_path / 'alone'}", code=2).stderr
    assert said.startswith(
        "error: there is nothing to score: give --store, --sentences or --retrieval"
    )


def test_heads_and_activation_can_be_asked_for(forked, small, tmp_path):
    flags = [f"--to=hf:{tmp_path / 'out'}", "--initialize_missing=true", "--hidden_act=gelu_tanh"]
    done = forked("bert_jax.convert", f"--from={small / 'bare'}", *flags)
    assert "without MLM head, NSP head: initialized at random" in done.stdout
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["hidden_act"] == "gelu_new"
    assert config["architectures"] == ["BertForPreTraining"]


def test_pooled_vectors_are_those_published_of_real_weights(forked, minilm, shared_data, tmp_path):
    known = json.loads((shared_data / "golden" / "minilm_l6_v2_known_outputs.json").read_text())
    first, cosine = known["mean_pool_normalised_first5"], known["cosine_similarity"]
    lines = [first["text"]]
    for case in cosine["cases"]:
        lines += [case["document"], *case["words"]]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    given = (f"--checkpoint={minilm}", f"--input={tmp_path}/in.txt", f"--output={tmp_path}/o.npz")
    forked("bert_jax.features", *given, "--pool=mean", "--normalize=true")
    with np.load(tmp_path / "o.npz") as arrays:
        vectors_ND = arrays["vectors"]
    np.testing.assert_allclose(vectors_ND[0, :5], first["values"], atol=first["atol"])
    start = 1
    for case in cosine["cases"]:
        words_WD = vectors_ND[start + 1 : start + 1 + len(case["words"])]
        got = words_WD @ vectors_ND[start]
        np.testing.assert_allclose(got, [*case["words"].values()], atol=cosine["atol"])
        start += 1 + len(case["words"])


def test_npz_and_json_lines_hold_the_same_vectors(forked, small, tmp_path):
    features = functools.partial(
        forked, "bert_jax.features", f"--checkpoint={small}/checkpoint", "--layers=-2:"
    )
    out = features(f"--input={small}/in.txt", f"--output={tmp_path}/o.npz").stdout
    assert "4, 1 empty, 1 cut to --max_seq_length" in out
    assert "token vectors, 14 wide, layer -2, -1 of 2" in out
    features(f"--input={small}/in.txt.gz", f"--output={tmp_path}/o.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.jsonl", "o.npz"]
    with np.load(tmp_path / "o.npz") as arrays:
        vectors, tokens, offsets = (arrays[name] for name in ("vectors", "tokens", "offsets"))
    assert offsets.tolist() == [0, 5, 7, 18, 37]
    assert tokens[:7].tolist() == TOKENS
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [line["linex_index"] for line in lines] == [0, 1, 2, 3]
    for number, line in enumerate(lines):
        wanted = slice(offsets[number], offsets[number + 1])
        assert [feature["token"] for feature in line["features"]] == tokens[wanted].tolist()
        said = [[layer["values"] for layer in f["layers"]] for f in line["features"]]
        np.testing.assert_allclose(said, vectors[wanted], atol=6e-7)


def test_int8_moves_vectors_and_scores_a_little(forked, small, tmp_path):
    (tmp_path / "in.txt").write_text("a cat sees a dog .\n")
    numbers = []
    for flags in ((), ("--int8",)):
        given = (f"--checkpoint={small}/checkpoint", *flags)
        output = tmp_path / f"o{len(flags)}"
        lines = f"--input={tmp_path}/in.txt", f"--output={output}.npz", "--pool=mean"
        forked("bert_jax.features", *given, *lines)
        lines = f"--sentences={tmp_path}/in.txt", f"--output={output}.jsonl"
        forked("bert_jax.evaluate", *given, *lines)
        score = json.loads(output.with_suffix(".jsonl").read_text())["pseudo_log_likelihood"]
        with np.load(output.with_suffix(".npz")) as arrays:
            numbers.append((arrays["vectors"], score))
    (vectors, score), (coarse_vectors, coarse_score) = numbers
    assert 0 < np.abs(coarse_vectors - vectors).max() < 0.05 * np.abs(vectors).max()
    assert 0 < abs(coarse_score - score) < 0.05 * abs(score)


def test_a_long_line_has_the_vectors_of_its_windows(forked, small, tmp_path):
    """40 tokens for 19 positions: beside the line stand its windows, as lines of their own."""
    words = np.random.default_rng(5).choice(["a", "cat", "dog", "sees", "."], 40)
    spans = [(0, 17), (9, 17), (18, 17), (27, 13)]
    windows = [words[first : first + length] for first, length in spans]
    lines = "".join(" ".join(line) + "\n" for line in (words, *windows))
    (tmp_path / "in.txt").write_text(lines)
    given = (f"--checkpoint={small}/checkpoint", f"--input={tmp_path}/in.txt", "--windows=9")
    out = forked("bert_jax.features", *given, f"--output={tmp_path}/o.npz").stdout
    assert "5, 1 in several windows" in out
    with np.load(tmp_path / "o.npz") as arrays:
        vectors, tokens, offsets = (arrays[name] for name in ("vectors", "tokens", "offsets"))
    long, *short = np.split(vectors, offsets[1:-1])
    assert tokens[:42].tolist() == ["[CLS]", *words, "[SEP]"]
    np.testing.assert_allclose(long[0], short[0][0], atol=1e-6)
    np.testing.assert_allclose(long[-1], short[-1][-1], atol=1e-6)
    for token in range(40):
        contexts = [min(token - first, first + n - 1 - token) for first, n in spans]
        chosen = int(np.argmax(contexts))
        in_window = short[chosen][1 + token - spans[chosen][0]]
        np.testing.assert_allclose(long[1 + token], in_window, atol=1e-6)


def test_sentences_are_scored_a_line_each(forked, small, tmp_path):
    (tmp_path / "sentences.txt").write_text("a cat sees dogs.\r\nA whale.\n")
    flags = [f"--sentences={tmp_path / 'sentences.txt'}", f"--output={tmp_path / 'scores.jsonl'}"]
    out = forked("bert_jax.evaluate", f"--checkpoint=hf:{small}/checkpoint", *flags).stdout
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [line["sentence"] for line in lines] == ["a cat sees dogs.", "A whale."]
    assert [(line["tokens"], line["unknown_tokens"]) for line in lines] == [(6, 0), (3, 1)]
    assert all(line["pseudo_log_likelihood"] < 0 < line["pseudo_perplexity"] for line in lines)
    total = sum(line["pseudo_log_likelihood"] for line in lines)
    table = out.splitlines()
    assert f"{total:.2f}" in table[-2] and table[-2].endswith("all 2, 1 tokens unknown")


def test_a_search_is_scored_by_the_vectors_that_features_writes(forked, small, tmp_path):
    """trec_eval on the products of the vectors gives the same numbers; BM25 stands next to them."""
    words = ["a", "cat", "dog", "sees", "dogs", "cats", "."]
    rng = np.random.default_rng(7)
    texts = [" ".join(rng.choice(words, rng.integers(1, 12)).tolist()) for _ in range(70)]
    texts[3] += " ||| a cat"  # no pair in a collection
    ids = sorted(f"{number}" for number in range(70))
    (tmp_path / "qrels").mkdir()
    for name, count in (("corpus", 70), ("queries", 20)):
        lines = [{"_id": key, "text": text} for key, text in zip(ids, texts, strict=True)]
        written = "".join(json.dumps(line) + "\n" for line in lines[:count])
        (tmp_path / f"{name}.jsonl").write_text(written)
    qrels = {
        query: {ids[document]: int(rng.integers(0, 4)) for document in rng.permutation(70)[:40]}
        for query in ids[:20]
    }
    lines = [f"{q}\t{d}\t{grade}" for q, grades in qrels.items() for d, grade in grades.items()]
    (tmp_path / "qrels" / "dev.tsv").write_text("\n".join(lines))
    shutil.copytree(small / "checkpoint", tmp_path / "model")
    (tmp_path / "model" / "modules.json").write_text('[{"type": "Normalize", "path": ""}]')
    given = f"--checkpoint=hf:{tmp_path}/model"
    searched = tmp_path / ("\udce9" if sys.platform == "linux" else "link")  # no UTF-8
    searched.symlink_to(tmp_path)
    flags = [f"--retrieval={searched}", "--split=dev", "--pool=cls", "--normalize=false", "--int8"]
    out = forked("bert_jax.evaluate", given, *flags, f"--output={tmp_path / 'o.jsonl'}").stdout
    assert "modules.json takes --pool=mean --normalize" in " ".join(out.split())

    (tmp_path / "in.txt").write_text("\n".join(text.replace("|||", "|| |") for text in texts))
    flags = [f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'o.npz'}", "--pool=cls"]
    written = forked("bert_jax.features", given, *flags, "--int8").stdout
    assert "modules.json takes --pool=mean --normalize" in " ".join(written.split())
    with np.load(tmp_path / "o.npz") as arrays:
        scores_QN = arrays["vectors"][:20] @ arrays["vectors"].T
    run = {
        query: dict(zip(ids, row.tolist(), strict=True))
        for query, row in zip(ids, scores_QN.astype(float), strict=False)
    }
    measures = {"ndcg_cut_10": "ndcg@10", "recall_100": "recall@100"}
    seen = pytrec_eval.RelevanceEvaluator(qrels, set(measures)).evaluate(run)
    vectors, bm25 = map(json.loads, (tmp_path / "o.jsonl").read_text().splitlines())
    for measure, name in measures.items():
        expected = np.mean([numbers[measure] for numbers in seen.values()])
        assert vectors[name] == pytest.approx(expected, abs=1e-4)
    assert vectors["int8"] and "int8" not in bm25  # which has no kernels
    assert bm25["system"] == "BM25" and bm25["ndcg@10"] != vectors["ndcg@10"]
    assert "70 documents, 20 queries of dev" in out
    assert f"BM25          nDCG@10 {bm25['ndcg@10']:.4f}, recall@100 " in out


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """The same checkpoint in every format, by the word that names the format."""
    folder = tmp_path_factory.mktemp("formats")
    google = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12}
    hf = small_checkpoints.write(folder / "hf", small_checkpoints.tensors(), **google)
    addresses = {
        "hf": f"hf:{hf}",
        "google": f"google:{folder}/google/bert_model.ckpt",
        "orbax": f"orbax:{folder}/run",
    }
    for address in (addresses["google"], addresses["orbax"]):
        export.write(load.load(addresses["hf"]), export.parse_target(address), ())
    return addresses


def test_fill_mask_and_evaluate_take_a_checkpoint_of_any_format(forked, addresses, tmp_path):
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("a cat sees dogs .\n")
    guesses, scores = set(), set()
    for address in addresses.values():
        flag = f"--checkpoint={address}"
        guesses.add(forked("bert_jax.fill_mask", flag, "a [MASK] sees a dog .").stdout)
        flag = f"--checkpoint={address.partition(':')[2]}"  # the place alone
        scored = forked("bert_jax.evaluate", flag, f"--sentences={sentences}").stdout
        scores.add(scored.partition("sentence")[2])
    assert len(guesses) == 1 and len(scores) == 1
    assert "%" in guesses.pop()


@pytest.mark.parametrize("end", ["", "\r", "\n", "\r\n", "\n\r"])
def test_the_stand_in_for_a_bucket_keeps_the_last_byte_of_a_file(monkeypatch, tmp_path, end):
    (tmp_path / "file").write_bytes(b"\x00\xff" + end.encode())
    with fake_bucket() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        files = gcsfs.GCSFileSystem(skip_instance_cache=True)
        files.put(str(tmp_path / "file"), f"{NAME}/file")
        assert server.storage.get_file(NAME, "file") == b"\x00\xff" + end.encode()


def test_a_checkpoint_in_a_bucket_is_asked(forked, addresses, monkeypatch):
    folder = pathlib.Path(addresses["orbax"].partition(":")[2])
    place = f"gs://{NAME}/runs/mine"
    sentence = "a [MASK] sees a dog ."
    with fake_bucket() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        files = gcsfs.GCSFileSystem(skip_instance_cache=True)
        files.put(str(folder), place.removeprefix("gs://"), recursive=True)
        module = [sys.executable, "-m", "bert_jax.fill_mask"]
        done = subprocess.run(
            [*module, f"--checkpoint=orbax:{place}", sentence],
            cwd=ROOT,
            env=environment() | server.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    expected = forked("bert_jax.fill_mask", f"--checkpoint={addresses['orbax']}", sentence).stdout
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_each_kind_of_features_leaves_its_scores_and_predictions(forked, small, tmp_path):
    kinds, output = ["last", "weighted_all"], tmp_path / "output"
    usual = [f"--checkpoint={small}/bare", f"--data_dir={small}", "--max_seq_length=16"]
    few = [f"--features={','.join(kinds)}", "--units=3", "--epochs=2", f"--output={output}"]
    said = forked("bert_jax.baseline", "ner", *usual, *few).stdout
    scores = json.loads((output / "scores.json").read_text())
    assert list(scores) == kinds
    for kind, best in scores.items():
        assert f"f1 {best['f1']:.4f} on dev, epoch {best['epoch']}" in said
        dev = score.read_score(output / kind / "dev.conll")
        assert (dev.words, dev.overall.gold) == (7, 3)
        assert dev.overall.f1 == best["f1"]
        assert score.read_score(output / kind / "test.conll").words == 7


def test_each_kind_of_predictions_is_scored(forked, tmp_path):
    questions = (question("a", "Who?", ("the Eve", 0)), question("b", "Why?", ("May", 0)))
    written(tmp_path / "dev.json", [Paragraph("Eve", questions)])
    (tmp_path / "predictions.json").write_text(json.dumps({"a": "Eve."}))
    (tmp_path / "dev.conll").write_text("Eve B-P B-P\nran O O\n")
    (tmp_path / "dev.csv").write_text(",pred,label\n0,1,1\n1,0,1\n")
    squad = [f"--data={tmp_path}/dev.json", f"--predictions={tmp_path}/predictions.json"]
    done = forked("bert_jax.score", "--task=squad", *squad)
    assert json.loads(done.stdout) == {"exact_match": 50.0, "f1": 50.0}
    assert done.stderr == "questions without a prediction, counted as wrong: 1\n"
    done = forked("bert_jax.score", "--task=ner", f"--predictions={tmp_path}/dev.conll")
    assert "FB1: 100.00" in done.stdout and done.stdout.startswith("processed 2 tokens with 1")
    done = forked("bert_jax.score", "--task=codah", f"--predictions={tmp_path}/dev.csv")
    assert json.loads(done.stdout) == {"accuracy": 0.5}
