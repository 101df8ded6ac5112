"""Write a few rows of every GLUE task in its published layout, and their vocabulary."""

import pathlib

import pytest

from bert_jax.tasks.glue.specs import TASKS
from data_pipeline.vocab import Vocabulary
from tests.bert_jax.tasks.tiny_vocabulary import vocabulary_of

WORDS = "a big cat dog sat ran on the mat . ? yes no \" '"

# Folder and file -> text. Headers and columns as GLUE publishes them.
_MNLI = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
_MNLI += "sentence1_parse\tsentence2_parse\tsentence1\tsentence2"
_STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"


def _mnli(rows: list[str], labels: str) -> str:
    filled = [
        f"{i}\t31193n\t31193n\tgovernment\t( a )\t( b )\t(ROOT (A a))\t(ROOT (B b))\t{row}"
        for i, row in enumerate(rows)
    ]
    return "\n".join([f"{_MNLI}{labels}", *filled]) + "\n"


def stsb_rows(rows: list[str], score: str) -> str:
    filled = [f"{i}\tmain\tMSRvid\t2012\t{i:04}\tnone\tnone\t{row}" for i, row in enumerate(rows)]
    return "\n".join([f"{_STSB}{score}", *filled]) + "\n"


FILES = {
    # Half of a pair of quotation marks, and no line feed at the end.
    "CoLA/train.tsv": 'gj04\t1\t\tThe "cat sat.\ngj04\t0\t*\tCat the sat.\nbc01\t1\t\tA dog ran.',
    "CoLA/dev.tsv": "gj04\t1\t\tThe cat ran.\nks08\t0\t*\tRan cat.\n",
    "CoLA/test.tsv": "index\tsentence\n0\tThe cat sat.\n1\tA big mat.\n",
    "SST-2/train.tsv": "sentence\tlabel\nbig cat \t1\nno cat \t0\na dog \t0\n",
    "SST-2/dev.tsv": "sentence\tlabel\nyes \t1\nno \t0\n",
    "SST-2/test.tsv": "index\tsentence\n0\tthe cat\n1\tthe mat\n",
    "MRPC/train.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    "1\t10\t11\tThe cat sat .\tA cat sat .\r\n0\t12\t13\tA dog .\tNo mat .\r\n",
    "MRPC/dev.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    "1\t14\t15\tThe dog .\tA dog .\r\n1\t16\t17\tA mat .\tThe mat .\r\n",
    "MRPC/test.tsv": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t20\t21\tA .\tThe .\n"
    "1\t22\t23\tNo .\tYes .\n",
    "QQP/train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "133273\t213221\t213222\tA cat?\tThe cat?\t1\n402555\t536040\t536041\tA dog?\tA\n"
    "360472\t364011\t490273\tA dog?\tNo mat?\t0\n150662\t155721\t7256\tA mat?\tThe dog?\t0\n",
    "QQP/dev.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "201359\t303345\t303346\tA cat?\tThe mat?\t0\n263843\t69383\t380476\tA dog?\tThe dog?\t1\n",
    "QQP/test.tsv": "id\tquestion1\tquestion2\n0\tA cat?\tA mat?\n1\tThe cat?\tThe dog?\n",
    "STS-B/train.tsv": stsb_rows(["The cat\tA cat\t4.750", "A dog\tThe mat\t0.25"], "\tscore"),
    "STS-B/dev.tsv": stsb_rows(["A mat\tA mat\t5.000", "A dog\tA mat\t1.000"], "\tscore"),
    "STS-B/test.tsv": stsb_rows(["The cat\tThe dog", "A dog\tA dog"], ""),
    "MNLI/train.tsv": _mnli(
        [
            "The cat sat\tA cat sat\tentailment\tentailment",
            "The cat sat\tNo cat sat\tcontradiction\tcontradiction",
            "A dog\tA big dog\tneutral\tneutral",
            "A dog\tA dog\tentailment\tentailment",
        ],
        "\tlabel1\tgold_label",
    ),
    "MNLI/dev_matched.tsv": _mnli(
        ["A mat\tThe mat\tneutral\tentailment\tneutral\tneutral\tneutral\tneutral"] * 2,
        "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
    ),
    "MNLI/dev_mismatched.tsv": _mnli(
        ["A mat\tNo mat" + "\tcontradiction" * 6, "A mat\tA mat" + "\tentailment" * 6],
        "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
    ),
    "MNLI/test_matched.tsv": _mnli(["The cat\tThe dog", "A dog\tA dog"], ""),
    "MNLI/test_mismatched.tsv": _mnli(["The mat\tThe dog", "A dog\tA mat"], ""),
    "QNLI/train.tsv": "index\tquestion\tsentence\tlabel\n0\tA cat?\tThe cat sat.\tentailment\n"
    "1\tA dog?\tThe mat.\tnot_entailment\n",
    "QNLI/dev.tsv": "index\tquestion\tsentence\tlabel\n0\tA mat?\tThe mat.\tentailment\n"
    "1\tA cat?\tNo.\tnot_entailment\n",
    "QNLI/test.tsv": "index\tquestion\tsentence\n0\tA cat?\tYes.\n1\tA dog?\tNo.\n",
    "RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tThe cat sat.\tA cat.\tentailment\n"
    "1\tThe dog ran.\tA dog sat.\tnot_entailment\n",
    "RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tThe mat.\tA cat.\tnot_entailment\n"
    "1\tA dog.\tA dog.\tentailment\n",
    "RTE/test.tsv": "index\tsentence1\tsentence2\n0\tThe cat.\tA cat.\n1\tA dog.\tA mat.\n",
    "WNLI/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tThe cat sat.\tA cat.\t1\n"
    "1\tThe dog ran.\tA dog sat.\t0\n2\tA dog.\tA mat.\t0\n",
    "WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tThe mat.\tA cat.\t0\n"
    "1\tA dog.\tA dog.\t1\n",
    "WNLI/test.tsv": "index\tsentence1\tsentence2\n0\tThe cat.\tA cat.\n1\tA dog.\tA mat.\n",
    "diagnostic/diagnostic.tsv": "index\tsentence1\tsentence2\n0\tThe cat sat.\tThe cat ran.\n"
    "1\tA dog.\tNo dog.\n",
    "diagnostic/diagnostic-full.tsv": "Lexical Semantics\tPredicate-Argument Structure\tLogic\t"
    "Knowledge\tDomain\tPremise\tHypothesis\tLabel\n"
    "\t\tNegation\t\tNews\tThe cat sat.\tThe cat ran.\tneutral\n"
    "\t\tNegation\t\tNews\tA dog.\tNo dog.\tcontradiction\n",
}
FOLDERS = {name: task.name for name, task in TASKS.items()}


def write_glue(folder: pathlib.Path) -> pathlib.Path:
    """Write all files into a folder."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder


def small_vocabulary(folder: pathlib.Path) -> Vocabulary:
    """Write and load a vocabulary: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then WORDS."""
    return vocabulary_of(WORDS, folder)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    return small_vocabulary(tmp_path_factory.mktemp("vocabulary"))
