"""Small files that commands read, changed at random: read, or refused in one sentence.

hypothesis changes bytes of the file, or values of its JSON. What a change leaves valid may be read
(exit code 0); the rest is refused (2). A traceback, or exit code 1, which a supervisor tries again,
is a fault.
"""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.task import CLASSIFY
from bert_jax.tasks.task_layer import TaskLayer, to_json
from tests.bert_jax.small_checkpoints import PIECES, tensors, write

pytestmark = pytest.mark.long

EXAMPLES = 8  # a file and command; each takes two seconds, and ten where a run trains on
CONFIG = """
import dataclasses
from bert_jax.config import (
    CheckpointConfig, Config, EvalConfig, ModelConfig, OptimConfig, Phase, to_config_dict,
)

def get_config():
    return to_config_dict(Config(
        model=ModelConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=24,
        ),
        phases=(Phase(seq_len=24, steps=6, batch_size=8, max_predictions_per_seq=4),),
        optim=OptimConfig(learning_rate=1e-3, warmup_steps=2),
        eval=EvalConfig(every_steps=100, examples=16),
        checkpoint=CheckpointConfig(every_steps=3),
        log_every_steps=2,
    ))
"""

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["../secret", "/etc/passwd", "\x1b[2J", 2**63, -1, 1e308]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A file that a command reads, below the folder of a valid set of files.

    An asterisk stands for a name that Orbax chose; of several files the first is taken.
    """

    file: str
    module: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module.partition('.')[2]}-{self.file}"


TRAIN = ("--config={}/config.py", "--config.data.store={}/store", "--workdir={}/run")
CASES = [
    *(
        Case(f"store/{name}", "data_pipeline.inspect", ("--store={}/store", "--examples=1"))
        for name in (
            "manifest.json",
            "vocab.txt",
            "train/token_ids.npy",
            "heldout/token_counts.npy",
        )
    ),
    *(
        Case(f"run/{name}", "bert_jax.train", TRAIN)
        for name in (
            *("run.json", "metrics.jsonl", "attempts.jsonl", "vocab.txt", "lock"),
            *("summary.json", "data_verified.json", "left_out.json"),
            "checkpoints/6/receipt/receipt.json",
            # What is damaged here is moved away, and an older checkpoint is gone on from.
            *("checkpoints/6/state/_METADATA", "checkpoints/6/state/ocdbt.process_0/d/*"),
        )
    ),
    Case("run/bad_steps.jsonl", "bert_jax.replay", ("--workdir={}/run", "--bad")),
    Case("run/run.json", "bert_jax.replay", ("--workdir={}/run", "--step=2")),
    *(
        Case(name, "bert_jax.fill_mask", ("--checkpoint={}/run", "a [MASK] ."))
        for name in ("run/run.json", "run/vocab.txt")
    ),
    *(
        Case(
            f"hf/{name}",
            "bert_jax.features",
            ("--checkpoint=hf:{}/hf", "--input={}/sentences.txt", "--output={}/vectors.jsonl"),
        )
        for name in (
            *("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"),
            "model.safetensors",
        )
    ),
    Case(
        "tuned/config.json",
        "bert_jax.predict",
        ("--checkpoint=hf:{}/tuned", "--input={}/rows.tsv", "--output={}/predicted.tsv"),
    ),
    Case("run/run.json", "bert_jax.convert", ("--from=orbax:{}/run", "--to=hf:{}/export")),
]


@pytest.fixture(scope="module")
def valid(forked, tiny_store, tmp_path_factory):
    """A store, the workdir of a run on it and a folder of Hugging Face's, none of them changed."""
    folder = tmp_path_factory.mktemp("valid")
    shutil.copytree(tiny_store, folder / "store")
    (folder / "config.py").write_text(CONFIG)
    (folder / "sentences.txt").write_text("a cat sees\na dog .\n")
    write(folder / "hf", tensors())
    assert "cat" in PIECES
    (folder / "hf" / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    model = {"type": "WordPiece", "vocab": {piece: i for i, piece in enumerate(PIECES)}}
    tokenizer = {"model": model, "normalizer": {"lowercase": True}}
    (folder / "hf" / "tokenizer.json").write_text(json.dumps(tokenizer))
    layer = TaskLayer("table", CLASSIFY, ("no", "so", "yes"), options=TaskOptions(max_seq_length=9))
    classifier = {"classifier.weight": (3, 14), "classifier.bias": (3,)}
    zeros = {name: np.zeros(dims, np.float32) for name, dims in classifier.items()}
    write(
        folder / "tuned",
        tensors() | zeros,
        architectures=["BertForSequenceClassification"],
        bert_jax=to_json(layer),
    )
    (folder / "rows.tsv").write_text("text\na cat sees\na dog .\n")
    forked("bert_jax.train", *(argument.format(folder) for argument in TRAIN))
    (folder / "run" / "bad_steps.jsonl").write_text(
        '{"step": 2, "phase": 0, "reason": "mlm_loss is nan", "rows": {"first": 8, "last": 15, '
        '"epochs": [{"epoch": 0, "first_index": 8}]}}\n'
    )
    (folder / "run" / "left_out.json").write_text("[]")
    (folder / "run" / "data_verified.json").write_text('{"manifest": "0f", "file": [3, 5, 7]}')
    return folder


def changed_json(data: st.DataObject, content: bytes) -> bytes:
    """Replace or remove a value somewhere in a JSON document, or in a line of JSON lines."""
    lines = content.splitlines() if content.count(b"\n{") else [content]
    number = data.draw(st.integers(0, len(lines) - 1), label="line")
    root = {"": json.loads(lines[number])}
    holder, key = root, ""
    while isinstance(holder[key], dict | list) and holder[key]:
        if data.draw(st.integers(0, 3), label="stop here") == 0:
            break
        inner = holder[key]
        keys = sorted(inner) if isinstance(inner, dict) else range(len(inner))
        holder, key = inner, data.draw(st.sampled_from(keys), label="key")
    if holder is not root and data.draw(st.booleans(), label="remove"):
        del holder[key]
    else:
        holder[key] = data.draw(json_values, label="value")
    lines[number] = json.dumps(root[""]).encode()
    return b"\n".join(lines) + b"\n"


def changed_bytes(data: st.DataObject, content: bytes) -> bytes:
    """Cut, overwrite, repeat or insert bytes."""
    first = data.draw(st.integers(0, len(content)), label="first")
    last = data.draw(st.integers(first, min(len(content), first + 64)), label="last")
    instead = data.draw(
        st.binary(max_size=64) | st.sampled_from([b"", b"\0" * 4096, b"[" * 100_000, b"\n" * 100]),
        label="instead",
    )
    kept = content[last:] if data.draw(st.booleans(), label="keeps the end") else b""
    return content[:first] + instead + kept


@pytest.mark.fault(23, "a file of a store, a run or a checkpoint changed at random")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_changed_file_is_read_or_refused(case, valid, forked, tmp_path_factory):
    is_json = case.file.endswith((".json", ".jsonl", "_METADATA"))

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # the first failure is short; making it shorter takes minutes
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        folder = tmp_path_factory.mktemp("changed")
        shutil.copytree(valid, folder, dirs_exist_ok=True)
        path = min(folder.glob(case.file))
        content = path.read_bytes()
        change = changed_bytes
        if is_json and data.draw(st.booleans(), label="as JSON"):
            change = changed_json
        path.write_bytes(change(data, content))
        done = forked(case.module, *(a.format(folder) for a in case.arguments), code=None)
        shutil.rmtree(folder)
        assert done.returncode in (0, 2), done
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        if done.returncode == 2:
            assert done.stderr.count("\n") == 1 and len(done.stderr) < 1000, done.stderr

    run()


@pytest.mark.fault(23, "control: the changes do change the file")
def test_the_changes_do_change(valid: pathlib.Path):
    """A control: most changes are refused, so the fuzzer reaches what reads the file."""
    content = (valid / "store" / "manifest.json").read_bytes()
    seen = set()

    @settings(max_examples=20, database=None, deadline=None)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        seen.add(changed_json(data, content) == content)

    run()
    assert False in seen
