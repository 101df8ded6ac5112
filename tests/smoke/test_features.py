"""The features entry as a person runs it: on real weights, and on a small checkpoint."""

import functools
import gzip
import json

import numpy as np
import pytest

from tests.bert_jax import small_checkpoints

LINES = ["a cat sees", "", "a dog sees a cat . ||| a cat", "dogs " * 30]
TOKENS = ["[CLS]", "a", "cat", "sees", "[SEP]", "[CLS]", "[SEP]"]


@pytest.fixture
def features(forked):
    """The entry, from one that has its imports already."""
    return functools.partial(forked, "bert_jax.features")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    (folder / "in.txt").write_text("\n".join(LINES) + "\n")
    (folder / "in.txt.gz").write_bytes(gzip.compress((folder / "in.txt").read_bytes()))
    small_checkpoints.write(folder / "checkpoint", small_checkpoints.tensors())
    return folder


def test_pooled_vectors_are_those_published_of_real_weights(
    features, minilm, shared_data, tmp_path
):
    known = json.loads((shared_data / "golden" / "minilm_l6_v2_known_outputs.json").read_text())
    first, cosine = known["mean_pool_normalised_first5"], known["cosine_similarity"]
    lines = [first["text"]]
    for case in cosine["cases"]:
        lines += [case["document"], *case["words"]]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    features(
        *(f"--checkpoint={minilm}", f"--input={tmp_path}/in.txt", f"--output={tmp_path}/o.npz"),
        *("--pool=mean", "--normalize=true"),
    )
    with np.load(tmp_path / "o.npz") as found:
        vectors_ND = found["vectors"]
    np.testing.assert_allclose(vectors_ND[0, :5], first["values"], atol=first["atol"])
    at = 1
    for case in cosine["cases"]:
        words_WD = vectors_ND[at + 1 : at + 1 + len(case["words"])]
        got = words_WD @ vectors_ND[at]
        np.testing.assert_allclose(got, [*case["words"].values()], atol=cosine["atol"])
        at += 1 + len(case["words"])


def test_npz_and_json_lines_hold_the_same_vectors(features, small, tmp_path):
    from_small = (f"--checkpoint={small}/checkpoint", "--layers=-2:")
    out = features(*from_small, f"--input={small}/in.txt", f"--output={tmp_path}/o.npz").stdout
    assert "4, 1 empty, 1 cut to --max_seq_length" in out
    assert "token vectors, 14 wide, layer -2, -1 of 2" in out
    features(*from_small, f"--input={small}/in.txt.gz", f"--output={tmp_path}/o", "--format=jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o", "o.npz"]
    with np.load(tmp_path / "o.npz") as found:
        vectors, tokens, offsets = (found[name] for name in ("vectors", "tokens", "offsets"))
    assert offsets.tolist() == [0, 5, 7, 18, 37]
    assert tokens[:7].tolist() == TOKENS
    lines = [json.loads(line) for line in (tmp_path / "o").read_text().splitlines()]
    assert [line["linex_index"] for line in lines] == [0, 1, 2, 3]
    for number, line in enumerate(lines):
        wanted = slice(offsets[number], offsets[number + 1])
        assert [feature["token"] for feature in line["features"]] == tokens[wanted].tolist()
        said = [[of["values"] for of in feature["layers"]] for feature in line["features"]]
        np.testing.assert_allclose(said, vectors[wanted], atol=6e-7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--checkpoint="], "--checkpoint is missing"),
        (["--input={}/nowhere"], "/nowhere, which is not a file; give a text file, or - for stdin"),
        (["--input={}/empty"], "/empty, which holds no line: nothing was written"),
        (["--input={}/latin"], "/latin is not UTF-8: byte 0xe9 at byte offset 4"),
        (["--output={}/in.txt", "--format=npz"], "which is there already; give another name"),
        (["--output={}/o.csv"], "names no format that is written; they are npz, parquet, jsonl"),
        (["--layers=3"], "--layers is '3', but the checkpoint has 2 layers: 0 is the embeddings"),
        (["--pool=max"], "--pool is 'max'; it must be cls or mean"),
        (["--normalize=true"], "--normalize is for pooled vectors; give --pool=mean"),
        (["--max_seq_length=20"], "--max_seq_length is 20; it must be from 3 to 19"),
    ],
)
def test_mistakes_get_one_sentence_and_write_nothing(features, small, arguments, words):
    (small / "empty").touch()
    (small / "latin").write_bytes(b"caf\n\xe9\n")
    usual = ["--checkpoint={}/checkpoint", "--input={}/in.txt", "--output={}/new.npz"]
    given = [argument.format(small) for argument in [*usual, *arguments]]
    done = features(*given, code=2)
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and words in done.stderr
    assert not list(small.glob("*new*"))
