"""Every command of README, the guide and the API is run as it stands, on tiny texts and models.

A page is run from its first command to its last in a folder that holds what its placeholders name:
texts/, stores/mine, runs/mine, DIR, CHECKPOINT. Sizes are made small by flags that are added, and
what no test machine has (other hosts, TPUs, buckets) is replaced; scripts of launch/ are not run.
That every command is known with its flags is in test_pages.py, in seconds.
"""

import gzip
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

import pytest
from tokenizers import BertWordPieceTokenizer

from tests.conftest import _small_text
from tests.docs import pages
from tests.faults.runs import environment, free_port

ROOT = pages.ROOT
GUIDE = sorted((pages.DOCS / "guide").glob("*.md"))
PAGES = [
    pytest.param(page, id=page.name)
    for page in (pages.README, *GUIDE, pages.DOCS / "reference" / "api.md")
]
pytestmark = pytest.mark.long

ROLLED = "--config.compute.rolled_layers=True"  # compiles sooner
LAYERS = [  # four of them, for features of the last four
    ROLLED,
    *("--config.model.hidden_size=16", "--config.model.num_hidden_layers=4"),
    *("--config.model.num_attention_heads=2", "--config.model.intermediate_size=32"),
]
PHASES = [
    *("--config.phases[0].seq_len=16", "--config.phases[0].steps=4"),
    *("--config.phases[1].seq_len=24", "--config.phases[1].steps=2"),
    *("--config.phases[0].batch_size=8", "--config.phases[1].batch_size=8"),
    *("--config.phases[1].restart_learning_rate=1e-3", "--config.phases[1].restart_warmup_steps=1"),
    *("--config.eval.examples=16", "--config.optim.warmup_steps=1"),
]
ROWS = [ROLLED, "--config.data.max_seq_length=16", "--config.batch_size=8"]
TASK = [*ROWS, "--config.epochs=1"]
# What is added to the commands of a module, so that they are done in seconds.
ADDED = {
    "bert_jax.finetune": TASK,
    "bert_jax.study grid": ROWS,
    "bert_jax.study probe": [*TASK, "--every=6"],
    "bert_jax.baseline ner": ["--units=3", "--epochs=1", "--max_seq_length=16"],
    "bert_jax.baseline": ["--width=3"],
    "bert_jax.study": ["--plan", "--measure=false"],  # tests/bert_jax/lab runs a small one
    # tests/bert_jax/lab runs a small one. With rungs so wide the text is not too short for what
    # the page predicts.
    "bert_jax.ladder": ["--plan", "--measure=false", "--widths=64,320"],
    "bert_jax.baseline cove": ["--units=3", "--steps=2", "--seq_len=16", "--batch_size=4"],
    "bert_jax.baseline task": ["--units=3", "--epochs=1", "--config.data.max_seq_length=16"],
    "bert_jax.benchmark": [*LAYERS, "--seq_len=16", "--batch_size=8", "--secs=0.2"],
    "bert_jax.doctor": [*LAYERS, "--step_secs=0.1"],
    "bert_jax.plan": [*LAYERS, "--seq_len=128", "--per_chip_batch=8"],
    "data_pipeline.benchmark": ["--seq_len=16", "--secs=0.2", "--cores=1", "--batch_size=8"],
    "data_pipeline.export_tfrecord": [
        *("--seq_len=16", "--max_predictions_per_seq=3", "--epochs=1", "--shards=2", "--workers=1")
    ],
    "data_pipeline.import_tfrecord": ["--holdout=0.1"],
}
# What a page says and no test machine has -> what is run in its place.
REPLACED = {
    r"gs://BUCKET/wiki/\*\.gz": "texts/*.txt",
    r"--runner=DataflowRunner .*": "--runner=DirectRunner",
    r"--coordinator_address=.*": lambda: f"--coordinator_address=127.0.0.1:{free_port()}",
    r"--num_processes=4": "--num_processes=1",
    r"--topology=.*": "--topology=v5e:1x1",
    r"google:DIR/": "google:exports/google/",
    r"hf:sentence-transformers/all-MiniLM-L6-v2": "hf:CHECKPOINT",
    r"code/\*\*/\*\.py": "code/*.py",
    r"kmers.txt": "purchases.txt",
    r"--language=de": "--language=en",  # German sentences begin with capitals
    r"--vocab_size=(?!32768)\d+": "--vocab_size=200",
    r"--vocab_size=32768": "--vocab_size=300",  # bytes alone are 256
    r"--max_seq_length=256": "--max_seq_length=16",
    r"packed_examples=8": "packed_examples=4",
    r"--words=1000": "--words=3",
    r"--step=40": "--step=2",
    r"--profile_steps=.*": "--profile_steps=2:3",
    r"--config.init_layers=.*": "--config.init_layers=0,2",
    r"--config.checkpoint.keep_every_steps=100": "--config.checkpoint.keep_every_steps=1",
    r"runs/trunk@400": "runs/trunk@2",
    r"--config.optim.decay_steps=50": "--config.optim.decay_steps=2",
    r"glue.py:task=sst2": "glue.py:task=rte",
    r"--config.prune.intermediate_size=.*": "--config.prune.intermediate_size=16",
    r"--learning_rates=.*": "--learning_rates=5e-5",
    r"--epochs=2,3,4": "--epochs=1",
    r"--seeds=.*": "--seeds=0",
}
NOT_RUN = {
    "benchmarks.step_vs_hf_flax",  # these two make an environment of their own
    "benchmarks.step_vs_hf_torch",
    "bert_jax.verify_resume",  # tests/faults/test_kills.py runs it; it takes minutes
}


def words_of(command: str) -> list[str]:
    """Split a command as a shell does, with what this machine has not replaced."""
    words = []
    for word in shlex.split(command, comments=True):
        for pattern, value in REPLACED.items():
            replacement = value if isinstance(value, str) else value()
            word = re.sub(pattern, lambda _, text=replacement: text, word)
        words.append(word)
    return words


def flags_for(module: str, words: list[str]) -> list[str]:
    """Give the flags that make a command small."""
    if module == "bert_jax.train":
        has_sizes = any(word.startswith("--config.init=") for word in words)
        plain = ["--config.data.packed_examples=1"] if "continue.py" in words[3] else []
        # auto.py has no more positions than its rows, and sentences of the pages need more.
        long = ["--config.model.max_position_embeddings=64"] if "auto.py" in words[3] else []
        return [ROLLED, *PHASES, *plain] if has_sizes else [*LAYERS, *PHASES, *long]
    flags = ADDED.get(" ".join([module, *words[3:4]]), ADDED.get(module, []))
    if module == "bert_jax.benchmark" and not any("data.store=" in word for word in words):
        flags = [*flags, "--config.model.vocab_size=300"]
    if module == "bert_jax.plan" and any(word.startswith("--budget") for word in words):
        flags = [ROLLED, "--config.phases[0].batch_size=8", "--config.phases[1].batch_size=8"]
        if any("auto.py" in word for word in words):  # the store is too small for any size
            flags = [*LAYERS, *flags[1:]]
    if any("config.prune" in word for word in words):
        flags = [*flags, "--config.prune.rounds=1"]
    if "bilm" in words:
        flags = [*flags, "--steps=2", "--seq_len=16", "--batch_size=4"]
    return flags


def run(forked, folder: pathlib.Path, command: str, done: Sequence[list[str]] = ()) -> str:
    """Run a command of a page in a folder; what it leaves is kept for the next one."""
    words = words_of(command)
    module, arguments = words[2], words[3:]
    if module in NOT_RUN or words in done:
        return ""
    if module == "bert_jax.plan":
        pytest.importorskip("libtpu", reason="needs the extra [plan]: libtpu")
    for word in arguments:  # a new run in place of the one that is there
        name, _, place = word.partition("=")
        is_new = name == "--output" or (name == "--workdir" and module == "bert_jax.train")
        if is_new and (folder / place).is_dir():
            shutil.rmtree(folder / place)
    return forked(module, *arguments, *flags_for(module, words), cwd=folder).stdout


def write_task_files(folder: pathlib.Path) -> None:
    """Write small files of every task of the guide: a table, RTE, entities."""
    sentences = _small_text(30).replace("\n\n", "\n").splitlines()
    rows = [(text, "cat" if "cat" in text else "other") for text in sentences]
    for split, part in (("train", rows[:48]), ("dev", rows[48:64]), ("test", rows[64:72])):
        lines = ["text,label,review,stars"] + [f"{t},{c},{t},{c}" for t, c in part]
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
        tagged = [
            "\n".join(f"{w} {'B-PET' if w == 'cat' else 'O'}" for w in t.split()) for t, _ in part
        ]
        (folder / f"{split}.txt").write_text("\n\n".join(tagged) + "\n")
    (folder / "RTE").mkdir()
    for split in ("train", "dev"):
        lines = ["index\tsentence1\tsentence2\tlabel"] + [
            f"{i}\t{t}\t{rows[i - 1][0]}\t{'entailment' if i % 2 else 'not_entailment'}"
            for i, (t, _) in enumerate(rows[:24])
        ]
        (folder / "RTE" / f"{split}.tsv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def base(forked, tmp_path_factory):
    """A folder with texts, a store, a run and its export, and README's commands that made them."""
    folder = tmp_path_factory.mktemp("manual")
    (folder / "configs").symlink_to(ROOT / "configs")
    for name in ("texts", "field", "records", "DIR"):
        (folder / name).mkdir()
    (folder / "code").symlink_to(ROOT / "data_pipeline" / "vocab")
    (folder / "texts" / "a.txt").write_text(_small_text(300))
    (folder / "field" / "a.txt").write_text(_small_text(200).replace(" cat ", " queequeg "))
    (folder / "sentences.txt").write_text("the cat sees a dog .\na dog hears ||| the old king .\n")
    (folder / "aligned.tsv").write_text("the cat sees a dog .\ta dog hears the king .\n" * 30)
    (folder / "new.csv").write_text("review\nthe cat sees a dog\nmy sister hears the king\n")
    months, goods = "abcdefghijkl", "abcdefghijklmnopqrstuvwxyz"
    buys = [
        f"month{months[i % 12]} disc{goods[i % 26]}{goods[i % 7]} dollars{goods[i % 17]}"
        for i in range(1500)
    ]
    documents = ["\n".join(buys[i : i + 5]) for i in range(0, len(buys), 5)]
    (folder / "purchases.txt").write_text("\n\n".join(documents) + "\n")
    question = {"id": "a", "question": "Who?", "answers": [{"text": "Eve", "answer_start": 0}]}
    paragraph = {"context": "Eve ran", "qas": [question | {"is_impossible": False}]}
    squad = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph]}]}
    (folder / "dev-v2.0.json").write_text(json.dumps(squad))
    (folder / "predictions.json").write_text('{"a": "Eve"}')
    (folder / "null_odds.json").write_text('{"a": -1.0}')
    write_task_files(folder / "DIR")

    build, train, *_ = [
        command
        for command in pages.commands_in(pages.README.read_text())
        if "data_pipeline.build" in command or "bert_jax.train" in command
    ]
    run(forked, folder, build)
    run(forked, folder, train)
    run(forked, folder, "python -m bert_jax.convert --from=orbax:runs/mine --to=hf:CHECKPOINT")
    for name in ("stores/field", "STORE"):
        shutil.copytree(folder / "stores" / "mine", folder / name)
    for name, count in (("en", 200), ("de", 250)):
        (folder / f"{name}.txt").write_text(_small_text(count))
        vocabulary = "--vocab=stores/mine/vocab.txt"
        output = f"--output=stores/{name}"
        forked("data_pipeline.build", f"--input={name}.txt", vocabulary, output, cwd=folder)
    (folder / "xquad" / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        line = '{"_id": "1", "text": "The method returns a list."}\n'
        (folder / "xquad" / f"{name}.jsonl").write_text(line)
    (folder / "xquad" / "qrels" / "test.tsv").write_text("1\t1\t1\n")
    for name in ("field", "quickstart"):
        shutil.copytree(folder / "runs" / "mine", folder / "runs" / name)
    shutil.copy(folder / "stores" / "mine" / "vocab.txt", folder)
    with gzip.open(folder / "Alice.txt.gz", "wt") as file:
        marks = "*** {} OF THE PROJECT GUTENBERG EBOOK ALICE ***"
        file.write(f"{marks.format('START')}\n\n{_small_text(50)}\n\n{marks.format('END')}\n")
    for name in ("neox", "gemma", "xlmr"):
        BertWordPieceTokenizer(str(folder / "vocab.txt")).save(str(folder / f"{name}.json"))
    shutil.copytree(folder / "CHECKPOINT", folder / "DIR", dirs_exist_ok=True)
    for name, seq_len in ((128, 16), (512, 24)):
        sizes = [f"--seq_len={seq_len}", "--max_predictions_per_seq=3", "--epochs=1", "--shards=1"]
        output = f"--output=records/{name}"
        forked("data_pipeline.export_tfrecord", "--store=stores/mine", output, *sizes, cwd=folder)
    return folder, [words_of(build), words_of(train)]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_one_after_another(forked, base, tmp_path, page):
    made, done = base
    folder = tmp_path / "folder"
    shutil.copytree(made, folder, symlinks=True)
    text = page.read_text(encoding="utf-8")
    for command in pages.commands_in(text):
        if " -m " in command and not pages.script_in(command.split()):
            run(forked, folder, command, done)
    for block in pages.python_in(text):
        subprocess.run([sys.executable, "-c", block], cwd=folder, env=environment(), check=True)
