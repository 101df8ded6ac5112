"""Every file of a model's folder x every kind of damage: a sentence, no traceback, no wait."""

import dataclasses
import json
import os
import shutil

import pytest

from bert_jax.checkpoint.reader import read_param_dims
from bert_jax.interop import load, tf1, vocabulary
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer
from tests import damages
from tests.bert_jax.small_checkpoints import PIECES, tensors, write

DAMAGES = (
    *(damages.empty, damages.cut, damages.random, damages.nul_bytes, damages.nested),
    *(damages.other_type, damages.huge, damages.link_to_itself, damages.fifo, damages.folder),
)
DATA = ".data-00000-of-00001"
SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "type_vocab_size"),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("built") / "model", tensors())
    tokenizer = make_wordpiece_tokenizer(PIECES, "[UNK]", lowercase=True)
    tokenizer.add_special_tokens(["[SEP]"])
    files = {
        "tokenizer_config": {"do_lower_case": True},
        "tokenizer": json.loads(tokenizer.to_str()),
        "added_tokens": {},
        "special_tokens_map": {"mask_token": "[MASK]"},
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def model(built, tmp_path):
    return shutil.copytree(built, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"),
        *("tokenizer.json", "added_tokens.json", "special_tokens_map.json"),
    ],
)
def test_a_damaged_file_of_hugging_faces_is_refused(model, name, damage):
    damage(model / name)
    if not (model / name).is_file() and ("token" in name or name == "vocab.txt"):
        load.load(f"hf:{model}")  # what may be absent, and is no file, is as if absent
        return
    with pytest.raises((ValueError, OSError)) as error:
        load.load(f"hf:{model}")
    assert str(model) in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("value", [200_000_000, 1 << 62, 0, -1, "2", None, [1], 2.5, {}])
@pytest.mark.parametrize("size", SIZES)
def test_an_impossible_size_is_refused_before_a_model_is_built(model, size, value):
    shown = json.loads((model / "config.json").read_text()) | {size: value}
    (model / "config.json").write_text(json.dumps(shown))
    with pytest.raises(ValueError, match=rf"config\.json (says|has) {size} = "):
        load.load(f"hf:{model}")


@pytest.mark.parametrize(
    "name", ["../other.safetensors", "/etc/hostname", "..", "", "a/b", "x\0y", "a" * 300, 7, None]
)
def test_an_index_names_no_file_elsewhere(model, name):
    (model / "model.safetensors").rename(model.parent / "other.safetensors")
    index = {"weight_map": {"bert.pooler.dense.bias": name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"index\.json names .*, which is not in its folder"):
        load.load(f"hf:{model}")


def test_the_files_of_the_hubs_cache_are_links(model):
    """There a snapshot holds links to ../../blobs."""
    blobs = model.parent / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(model.iterdir())):
        path.rename(blobs / str(number))
        path.symlink_to(f"../blobs/{number}")
    assert load.load(f"hf:{model}").vocabulary.pieces() == PIECES


@pytest.mark.parametrize(
    "header",
    [
        {"bert.pooler.dense.bias": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 8]}},
        {"bert.pooler.dense.bias": {"dtype": "F32", "shape": [2], "data_offsets": [0, 1 << 60]}},
        {"bert.pooler.dense.bias": {"dtype": "X9", "shape": [2], "data_offsets": [0, 8]}},
        {"bert.pooler.dense.bias": 5},
        [],
    ],
)
def test_a_safetensors_header_that_lies_is_refused(model, header):
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(8)
    (model / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load.load(f"hf:{model}")
    (model / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + text)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load.load(f"hf:{model}")


@pytest.fixture(scope="module")
def google(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("google")
    read = load.load(f"hf:{built}")
    config = dataclasses.replace(read.config, hidden_act="gelu_tanh", layer_norm_eps=1e-12)
    tf1.write(dataclasses.replace(read, config=config), folder / "bert_model.ckpt")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (name, damage)
        for name in ("bert_config.json", "bert_model.ckpt.index", "bert_model.ckpt" + DATA)
        for damage in DAMAGES
        if (name, damage) != ("bert_model.ckpt" + DATA, damages.huge)  # the rest is not read
    ],
)
def test_a_damaged_file_of_googles_is_refused(google, tmp_path, name, damage):
    folder = shutil.copytree(google, tmp_path / "model")
    damage(folder / name)
    with pytest.raises((ValueError, OSError)) as error:
        load.load(f"google:{folder}/bert_model.ckpt")
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "kind", ["float32", "float32[]", "float32[x]", "float32[-1]", "float32[" + "9" * 40 + "]", ""]
)
def test_sizes_in_a_checkpoints_metadata_that_are_none_are_refused(monkeypatch, tmp_path, kind):
    receipt = {"leaves": {"params/pooler/bias": f"{kind} 123"}}
    monkeypatch.setattr("bert_jax.checkpoint.directory.read_receipt", lambda checkpoint: receipt)
    with pytest.raises(ValueError, match=r"checkpoint 3 of .* has params/pooler/bias as"):
        read_param_dims(tmp_path, 3)


def test_a_pipe_is_no_vocabulary(tmp_path):
    os.mkfifo(tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match=r"has no vocab\.txt and no tokenizer\.json; put the voc"):
        vocabulary.read(tmp_path)
