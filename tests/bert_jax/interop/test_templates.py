"""Rows of imported checkpoints, their vectors and classes, against Hugging Face's programs."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
import tokenizers

from bert_jax.config import ComputeConfig
from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.finetuning.objectives import OBJECTIVES
from bert_jax.inference import batches
from bert_jax.inference.hidden_states import Layers, compute_vectors
from bert_jax.interop import export, huggingface, load, model_card
from bert_jax.interop.pretrained import place_model
from bert_jax.tasks.encode import encode_texts
from bert_jax.tasks.task import CLASSIFY
from data_pipeline.io import Refused
from data_pipeline.labeled.rows import EncodedRows, join_rows
from data_pipeline.spec.schema import GOOGLE, TRANSFORMERS
from data_pipeline.vocab.template import Template, make_bert_template, make_xlnet_template
from tests.bert_jax.interop.golden_models import read_golden, write_folder
from tests.golden import templates

TOLERANCE = 1e-5
FLOAT32 = ComputeConfig(compute_dtype="float32")

RULED = ("Albert", "XLNet")  # a SentencePiece model read by its authors' rules


@pytest.fixture(scope="module")
def golden():
    return read_golden(templates)


@pytest.fixture
def folder(golden, tmp_path):
    """A function that writes a family's classifier and the files of its tokenizer."""

    def write(kind: str) -> pathlib.Path:
        place = tmp_path / kind
        place.mkdir()
        for name in golden:
            if name.startswith(f"{kind}/files/"):
                (place / name.rpartition("/")[2]).write_bytes(golden[name].tobytes())
        write_folder(place, golden, kind)
        return place

    return write


def write_copy(checkpoint, layer, folder) -> pathlib.Path:
    """Write what an export does, without its proof that both compute the same."""
    target = export.parse_target(f"hf:{folder}")
    folder.mkdir()
    tuned = dataclasses.replace(checkpoint, task=layer)
    huggingface.write(export.keep_supported(tuned, target), folder)
    return folder


def encode(kind, vocabulary, rule) -> EncodedRows:
    """Encode templates.ROWS one by one."""
    parts = []
    for longest, given in templates.ROWS:
        first, *second = ([text] for text in templates.spaced(kind, given))
        pair = second[0] if second else None
        options = TaskOptions(max_seq_length=longest, pair_truncation=rule)
        parts.append(encode_texts(first, pair, vocabulary, options).rows)
    return join_rows(parts)


def check_tokenizer(copy, kind, golden) -> None:
    """Check that the library makes the same rows from the files of an export."""
    library = tokenizers.Tokenizer.from_file(str(copy / "tokenizer.json"))
    for number, (longest, given) in enumerate(templates.ROWS):
        library.enable_truncation(longest)
        row = library.encode(*templates.spaced(kind, given))
        is_token = golden[f"{kind}/ids"][number] >= 0
        assert row.ids == golden[f"{kind}/ids"][number][is_token].tolist()
        assert row.type_ids == golden[f"{kind}/segments"][number][is_token].tolist()


def check_ruled(copy, kind) -> None:
    """Check that the family's class prepares text for the model, as no tokenizer.json can."""
    assert not (copy / "tokenizer.json").exists()
    assert (copy / "spiece.model").is_file()
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == f"{kind}Tokenizer"
    assert settings["do_lower_case"] == (kind == "Albert")


def check_settings(copy, kind) -> None:
    # transformers 5 gives no segments by itself, and XLNet's classes read the last token.
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    has_segments = kind not in ("Roberta", "ModernBert")
    assert ("token_type_ids" in settings["model_input_names"]) == has_segments
    assert settings.get("padding_side", "right") == ("left" if kind == "XLNet" else "right")
    config = json.loads((copy / huggingface.CONFIG).read_text())
    assert config.get("summary_type", "last") == "last"


@pytest.mark.parametrize("kind", templates.MODELS)
def test_rows_are_those_of_transformers_tokenizers(kind, golden, folder, tmp_path):
    checkpoint, layer = load.load_fine_tuned(f"hf:{folder(kind)}")
    assert checkpoint.pair_truncation == layer.options.pair_truncation == TRANSFORMERS
    rows = encode(kind, checkpoint.vocabulary, TRANSFORMERS)
    ids, segments = golden[f"{kind}/ids"], golden[f"{kind}/segments"]
    assert rows.token_ids.tolist() == ids[ids >= 0].tolist()
    assert rows.segment_ids.tolist() == segments[ids >= 0].tolist()
    others = encode(kind, checkpoint.vocabulary, GOOGLE)
    assert others.token_ids.tolist() != rows.token_ids.tolist()
    copy = write_copy(checkpoint, layer, tmp_path / "copy")
    if kind in RULED:
        check_ruled(copy, kind)
    else:
        check_tokenizer(copy, kind, golden)
    check_settings(copy, kind)


def test_a_row_without_cls_is_padded_where_positions_stay(folder, tmp_path):
    """A tokenizer.json may end a text alone, as T5's; a BERT counts its positions from the left."""
    checkpoint, layer = load.load_fine_tuned(f"hf:{folder('Bert')}")
    template = Template((("A", 0), (3, 0)), (("A", 0), (3, 0), ("B", 1), (3, 1)), 2)
    words = dataclasses.replace(checkpoint.vocabulary, template=template)
    ended = dataclasses.replace(checkpoint, vocabulary=words)
    check_settings(write_copy(ended, layer, tmp_path / "copy"), "Bert")


def test_segments_that_a_model_has_no_row_for_are_refused(folder):
    place = folder("Bert")
    pieces = (place / "vocab.txt").read_text().split("\n")[:-1]
    ids = {piece: i for i, piece in enumerate(pieces)}
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    library.normalizer = tokenizers.normalizers.BertNormalizer()
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    processor = make_xlnet_template({"cls": 2, "sep": 3}).make_processor(pieces)
    written = json.loads(library.to_str()) | {"post_processor": processor}
    (place / "tokenizer.json").write_text(json.dumps(written))
    with pytest.raises(Refused, match=r"segment 2 .*type_vocab_size = 2"):
        load.load(f"hf:{place}")


def test_an_xlnet_whose_rows_begin_with_cls_is_read_so_from_its_export(folder, tmp_path):
    """As a run on a store exports it, whose model has the rules of XLNet's authors."""
    checkpoint, layer = load.load_fine_tuned(f"hf:{folder('XLNet')}")
    words = checkpoint.vocabulary
    words = dataclasses.replace(words, template=make_bert_template(words.special_ids))
    tuned = dataclasses.replace(checkpoint, vocabulary=words)
    read, _ = load.load_fine_tuned(f"hf:{write_copy(tuned, layer, tmp_path / 'copy')}")
    assert read.vocabulary.template == words.template
    assert read.vocabulary.sentencepiece_rules == words.sentencepiece_rules == "xlnet"
    tuned = dataclasses.replace(tuned, task=layer)
    card = model_card.render(tuned, "copy", (), (), has_tokenizer=False)
    assert "AutoTokenizer.from_pretrained('copy', use_fast=False)" in card
    assert "vocab.model" not in card


@pytest.mark.long
@pytest.mark.parametrize("kind", templates.MODELS)
def test_vectors_and_classes_of_an_export_are_those_of_transformers(kind, golden, folder, tmp_path):
    """Vectors by token and of [CLS], and the logits of a classifier."""
    checkpoint, layer = load.load_fine_tuned(f"hf:{folder(kind)}")
    target = export.parse_target(f"hf:{tmp_path / 'copy'}")
    tuned = dataclasses.replace(checkpoint, task=layer)
    largest = export.write(export.keep_supported(tuned, target), target, ())
    assert largest["[CLS] logits"] == largest["token logits"] == 0.0
    checkpoint, layer = load.load_fine_tuned(f"hf:{tmp_path / 'copy'}")
    assert layer.kind == CLASSIFY
    rows = encode(kind, checkpoint.vocabulary, TRANSFORMERS)
    model = place_model(checkpoint, checkpoint.heads, jax.local_devices()[:1], FLOAT32)

    def compute(bert, batch):
        last = Layers((-1,), is_single=True)
        return {"logits": OBJECTIVES[CLASSIFY].outputs(bert, batch)} | {
            name: compute_vectors(bert, batch, last, pool, False)["vectors"]
            for name, pool in (("tokens", None), ("cls", "cls"))
        }

    step = batches.compile_step(model.model, compute)
    ours = batches.collect(batches.run_rows(step, model, rows, len(templates.ROWS)), rows.examples)
    np.testing.assert_allclose(ours["logits"], golden[f"{kind}/logits"], atol=TOLERANCE)
    theirs, is_token = golden[f"{kind}/hidden"], golden[f"{kind}/ids"] >= 0
    every = ours["tokens"][:, : theirs.shape[1]]
    np.testing.assert_allclose(every[is_token], theirs[is_token], atol=TOLERANCE)
    cls_N = rows.cls_positions
    assert np.all((cls_N > 0) == (kind == "XLNet"))
    of_cls = theirs[np.arange(len(theirs)), cls_N]
    np.testing.assert_allclose(ours["cls"], of_cls, atol=TOLERANCE)
