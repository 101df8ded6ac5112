"""Templates of special tokens against the tokenizers library."""

import json
import pathlib

import pytest
import tokenizers
from tokenizers import processors

from data_pipeline.io.small_files import DamagedFile
from data_pipeline.labeled.framing import frame
from data_pipeline.vocab.template import (
    from_json,
    make_bert_template,
    make_store_template,
    make_xlnet_template,
    read_template,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"]
ROLES = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
CLS, SEP = ("[CLS]", 2), ("[SEP]", 3)
XLNET = processors.TemplateProcessing(
    single="$A:0 [SEP]:0 [CLS]:2",
    pair="$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2",
    special_tokens=[CLS, SEP],
)
PROCESSORS = {
    "bert": processors.BertProcessing(SEP, CLS),
    "roberta": processors.RobertaProcessing(SEP, CLS),
    "xlnet": XLNET,
    "sequence": processors.Sequence([processors.ByteLevel(), XLNET]),
    "several": processors.TemplateProcessing(
        single="[CLS]:0 [MASK]:1 $A:1 [SEP]:0",
        pair="$A:3 [CLS]:1 [SEP]:0 $B:2",
        special_tokens=[CLS, SEP, ("[MASK]", 4)],
    ),
}
PATH = pathlib.Path("tokenizer.json")


def library(processor) -> tokenizers.Tokenizer:
    id_of = {word: i for i, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(id_of, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processor
    return tokenizer


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("texts", [["a b c"], ["a b c", "d a"]])
def test_rows_are_those_of_the_library(name, texts):
    theirs = library(PROCESSORS[name])
    template = read_template(json.loads(theirs.to_str()), ROLES, PATH)
    ids = [[WORDS.index(word) for word in text.split()] for text in texts]
    row = frame(ids[0], ids[1] if texts[1:] else None, template, 99)
    expected = theirs.encode(*texts)
    assert (row.token_ids, row.segment_ids) == (expected.ids, expected.type_ids)
    assert row.token_ids[row.cls_position] == ROLES["cls"]
    margins = template.margins(is_pair=len(texts) > 1)
    assert (
        sum(margins)
        == template.count_specials(len(texts) > 1)
        == len(row.token_ids) - sum(map(len, ids))
    )


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_template_comes_back_from_the_file_it_writes(name):
    settings = json.loads(library(PROCESSORS[name]).to_str())
    template = read_template(settings, ROLES, PATH)
    written = template.make_processor(WORDS)
    assert read_template({"post_processor": written}, ROLES, PATH) == template
    theirs = tokenizers.Tokenizer.from_str(json.dumps(settings | {"post_processor": written}))
    expected = library(PROCESSORS[name]).encode("a b", "c")
    assert theirs.encode("a b", "c").ids == expected.ids
    assert theirs.encode("a b", "c").type_ids == expected.type_ids


def test_the_templates_of_families_are_those_of_their_files_and_some_files_have_none():
    assert read_template(json.loads(library(processors.ByteLevel()).to_str()), ROLES, PATH) is None
    assert read_template({}, ROLES, PATH) is None
    made = {"bert": make_bert_template(ROLES), "xlnet": make_xlnet_template(ROLES)}
    made["roberta"] = make_bert_template(ROLES, separators=2, second_segment=0)
    for name, template in made.items():
        assert template == read_template(
            json.loads(library(PROCESSORS[name]).to_str()), ROLES, PATH
        )
        assert template.is_cls_first == (name != "xlnet")


MANY = {name: {"ids": [1] * 100} for name in ("[SEP]", "[CLS]")}


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        ({"type": "BertProcessing"}, "cls"),
        ({"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}, "single"),
        (json.loads(XLNET.__getstate__()) | {"single": [{"Sequence": {"id": "B"}}]}, "type_id"),
        (json.loads(XLNET.__getstate__()) | {"special_tokens": {}}, "SEP"),
        ({**json.loads(XLNET.__getstate__()), "special_tokens": MANY}, "more than 128"),
        ({"type": "Sequence", "processors": [json.loads(XLNET.__getstate__())] * 2}, "2 steps"),
        ("BertProcessing", "str"),
    ],
)
def test_a_damaged_template_is_refused(processor, said):
    with pytest.raises(ValueError, match=f"tokenizer.json .*{said}"):
        read_template({"post_processor": processor}, ROLES, PATH)


def test_a_record_keeps_a_template_and_rows_of_a_store_begin_with_cls():
    for name, processor in PROCESSORS.items():
        template = read_template(json.loads(library(processor).to_str()), ROLES, PATH)
        recorded = json.loads(json.dumps(template.to_json()))
        assert from_json(recorded, ROLES, "run.json") == template
        kept = make_store_template(template, ROLES)
        assert kept == (template if template.is_cls_first else make_bert_template(ROLES)), name
    for wrong in (
        {"single": [["A", 0]]},
        {"single": [["A", 0]], "pair": [["B", 0], ["A", 0]]},
        {"single": [["A", 0], [2]], "pair": [["A", 0], ["B", 1]]},
        {"single": [["A", 300]], "pair": [["A", 0], ["B", 1]]},
        {"single": [[True, 0], ["A", 0]], "pair": [["A", 0], ["B", 1]]},
    ):
        with pytest.raises(DamagedFile, match=r"run\.json.*(single|pair)"):
            from_json(wrong, ROLES, "run.json")
