"""What sentence-transformers makes of a folder's vectors, by the files of its versions 2 to 6."""

import json

import pytest

from bert_jax.inference import hidden_states, sentence_modules
from bert_jax.inference.sentence_modules import SentenceVectors
from bert_jax.interop import huggingface, load
from tests.bert_jax import small_checkpoints

MEAN_OF_OLDER_VERSIONS = {
    "word_embedding_dimension": 14,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
}
TOKENIZER_OF_6 = {"do_lower_case": True, "model_max_length": 16}


def write(folder, kinds=("Pooling",), pooling=None, places=None, encoder="bert", **files):
    """Write the files; modules have the folder <number>_<kind>, unless `places` has another."""
    places = places or {}
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    ]
    for number, kind in enumerate(kinds, 1):
        place = places.get(kind, f"{number}_{kind}")
        modules.append({"idx": number, "path": place, "type": f"a.package.of.theirs.{kind}"})
    folder.mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {}))
    names = {
        "texts": f"sentence_{encoder}_config.json",
        "prompts": "config_sentence_transformers.json",
        "tokenizer": "tokenizer_config.json",
    }
    for name, content in files.items():
        (folder / names[name]).write_text(json.dumps(content))
    return folder


def extract(pool="mean", normalize=False, length=19, stride=0):
    layers = hidden_states.choose_layers("-1", 2)
    return hidden_states.Extraction(layers, pool, normalize, length, stride, batch_size=2)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"pooling": MEAN_OF_OLDER_VERSIONS}, SentenceVectors("mean")),
        ({"pooling": {"embedding_dimension": 14, "pooling_mode": "cls"}}, SentenceVectors("cls")),
        ({"pooling": {"pooling_mode_cls_token": True}}, SentenceVectors("cls")),
        ({"pooling": {"pooling_mode": ["cls", "max"]}}, SentenceVectors("cls+max")),
        (
            {"pooling": {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}},
            SentenceVectors("max+mean"),
        ),
        ({"kinds": ("Pooling", "Normalize")}, SentenceVectors("mean", normalize=True)),
        ({"kinds": ("Pooling", "Dropout")}, SentenceVectors("mean")),
        (
            {"kinds": ("Pooling", "Dense", "Normalize"), "texts": {"max_seq_length": 7}},
            SentenceVectors("mean", True, 7, ("a Dense module",)),
        ),
        ({"texts": {"max_seq_length": None, "do_lower_case": False}}, SentenceVectors("mean")),
        (
            {"texts": {"max_seq_length": 7}, "encoder": "xlm-roberta"},
            SentenceVectors(max_seq_length=7),
        ),
        (
            {"texts": {"transformer_task": "feature-extraction"}, "tokenizer": TOKENIZER_OF_6},
            SentenceVectors(max_seq_length=16),
        ),
        (
            {"texts": {"max_seq_length": 7}, "tokenizer": TOKENIZER_OF_6},
            SentenceVectors(max_seq_length=7),
        ),
        (
            {"texts": {"do_lower_case": True}, "prompts": {"prompts": {"query": "q: ", "": ""}}},
            SentenceVectors("mean", False, 0, ("lowercasing", "prompts before texts (query)")),
        ),
        (
            {"prompts": {"prompts": {"query": "", "document": ""}, "default_prompt_name": None}},
            SentenceVectors(),
        ),
    ],
)
def test_files_of_every_version_say_the_same(tmp_path, files, expected):
    assert sentence_modules.read(write(tmp_path, **files)) == expected


def test_a_folder_without_modules_says_nothing(tmp_path):
    assert sentence_modules.read(tmp_path) is None
    assert sentence_modules.describe_differences(f"hf:{tmp_path}", extract()) == ""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_OF_6))
    for length, words in ((16, ""), (19, "tokenizer_config.json takes --max_seq_length=16")):
        made = sentence_modules.describe_differences(f"hf:{tmp_path}", extract(length=length))
        assert made == words


@pytest.mark.parametrize(
    ("files", "extraction", "words"),
    [
        ({}, extract(), ""),
        ({}, extract(pool=""), ""),
        ({}, extract(pool="cls"), "modules.json takes --pool=mean"),
        ({}, extract(normalize=True), ""),  # cosines of the same vectors
        ({"prompts": {"similarity_fn_name": "dot"}}, extract(), ""),
        (
            {"prompts": {"similarity_fn_name": "dot"}},
            extract(normalize=True),
            "modules.json takes --normalize=false",
        ),
        ({"texts": {"max_seq_length": 7}}, extract(), "modules.json takes --max_seq_length=7"),
        ({"texts": {"max_seq_length": 7}}, extract(length=7), ""),
        ({"texts": {"max_seq_length": 7}}, extract(stride=5), ""),
        (
            {"kinds": ("Pooling", "Normalize"), "pooling": {"pooling_mode": "cls"}},
            extract(),
            "modules.json takes --pool=cls --normalize",
        ),
        (
            {"kinds": ("Pooling", "Dense"), "pooling": {"pooling_mode": "lasttoken"}},
            extract(),
            "modules.json has pooling by lasttoken, a Dense module, "
            "which bert_jax does not compute",
        ),
    ],
)
def test_a_difference_is_described_with_the_flags_that_end_it(tmp_path, files, extraction, words):
    address = f"hf:{write(tmp_path, **files)}"
    assert sentence_modules.describe_differences(address, extraction) == words


@pytest.mark.parametrize(
    ("files", "name", "content"),
    [
        ({}, "modules.json", "{}"),
        ({}, "modules.json", '["Transformer"]'),
        ({}, "modules.json", '[{"path": ""}]'),
        ({}, "modules.json", '[{"type": "Pooling", "path": "../1_Pooling"}]'),
        ({"places": {"Pooling": "/etc"}}, "modules.json", None),
        ({}, "1_Pooling/config.json", '{"pooling_mode": 3}'),
        ({}, "1_Pooling/config.json", '{"pooling_mode_cls_token": "yes"}'),
        ({}, "sentence_bert_config.json", '{"max_seq_length": "256"}'),
        ({}, "config_sentence_transformers.json", "[]"),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(tmp_path, files, name, content):
    folder = write(tmp_path / "model", **files)
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ValueError, match=str(tmp_path)) as refused:
        sentence_modules.read(folder)
    assert "\n" not in str(refused.value)


def test_an_export_asks_for_what_features_computes(tmp_path):
    folder = small_checkpoints.write(tmp_path / "small", small_checkpoints.tensors())
    (tmp_path / "export").mkdir()
    huggingface.write(load.load(f"hf:{folder}"), tmp_path / "export")
    theirs = sentence_modules.read(tmp_path / "export")
    assert theirs == SentenceVectors(
        "mean", False, small_checkpoints.SIZES["max_position_embeddings"]
    )
