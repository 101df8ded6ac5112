"""What each command refuses: one sentence, exit code 2, nothing on stdout, no file written."""

import importlib

import pytest

from data_pipeline.cli.stderr_log import LibraryLog

pytestmark = pytest.mark.slow

TINY = "--config=configs/tiny.py"
RTE = ("--config=configs/finetune/glue.py:task=rte", "--config.init=hf:nowhere")
TABLE = (
    *("--config=configs/finetune/table.py", "--config.data.text_column=text"),
    *("--config.data.label_column=is_long", "--config.epochs=1"),
)
ROOM = "--workdir={new}"
STORE = "--config.data.store={store}"
NER = (
    *("--checkpoint={small}/bare", "--data_dir={small}"),
    *("--max_seq_length=16", "--output={new}"),
)
COUNTS = ("--from={store}", "--config=configs/finetune/table.py", ROOM)
FEATURES = ("--checkpoint={small}/checkpoint", "--input={small}/in.txt", "--output={new}.npz")
EVALUATE = ("--checkpoint=hf:{small}/checkpoint",)
RUN, CHECKPOINT = "--workdir={run}", "--checkpoint={run}"
# Command -> flags that it has in every row, and the rows: more flags, and a part of the sentence.
REFUSALS = {
    "train": (
        (),
        [
            ((), "--config is missing"),
            (("--config=configs/huge.py", ROOM), "bundled are configs/albert.py"),
            (("--config=configs/quikstart.py", ROOM), "did you mean configs/quickstart.py?"),
            (
                ("--config=configs/large.py:recipe=x", "--print_config"),
                "recipe is 'x'; give one of paper",
            ),
            (("--config=configs/tiny.py:x=1", ROOM), "get_config() does not fit: it is called"),
            (("--config=configs/base.py:x=1", ROOM), "sets 'x'; this config takes recipe"),
            (("--config=configs/base.py:tokens", ROOM), "'tokens' is not NAME=VALUE; this config"),
            (("--config=configs", ROOM), "that is a folder"),
            ((TINY,), "--workdir is missing"),
            ((TINY, ROOM), "config.data.store is empty; build a store"),
            ((TINY, ROOM, "--config.optm.learning_rate=1"), "did you mean --config.optim"),
            ((TINY, ROOM, "--process_id=1"), "add --multihost"),
            ((TINY, ROOM, "--profile_steps=9:7"), "--profile_steps=9:7 is not FIRST:LAST"),
        ],
    ),
    "verify_resume": (
        (TINY,),
        [
            ((), "--workdir is missing"),
            ((ROOM, "--kills=25", "--config.checkpoint.every_steps=10"), "log_every_steps is 20"),
        ],
    ),
    "study": (
        (),
        [
            (("gird",), "KIND is 'gird'; it must be one of grid, probe"),
            ((ROOM,), "--config is missing"),
            (("grid", *RTE), "--workdir is missing"),
            (("grid", *RTE, ROOM, "--config.epochs", "2"), "--config.epochs is varied by the grid"),
            (("grid", *RTE, ROOM, "--seeds=0,0"), "--seeds is '0,0'"),
            (("grid", *RTE, ROOM, "--epochs=two"), "--epochs is 'two'"),
            (
                ("grid", *RTE, ROOM, "--learning_rates=0.0,1e-5"),
                "config.optim.learning_rate is 0.0",
            ),
            (("probe", *TABLE), "--workdir is missing"),
            (("probe", *TABLE, ROOM, "--every=0"), "--every is 0"),
            (("probe", *TABLE, "--workdir=gs://bucket/run"), "--probe_dir is missing"),
            (("probe", ROOM, *TABLE, "--config.init=hf:there"), "config.init is hf:there"),
            (("probe", ROOM, *TABLE), "{new} holds no run of bert_jax"),
        ],
    ),
    "ladder": (
        (TINY,),
        [
            ((), "--workdir is missing"),
            ((ROOM,), "config.data.store is ''; give exactly one"),
            ((ROOM, "--config.data.store=a,b"), "config.data.store is 'a,b'"),
            ((ROOM, STORE, "--widths=64,x"), "--widths is '64,x'; it must be whole numbers"),
            ((ROOM, STORE, "--widths=64,72"), "has 72, not a multiple of the head width 32"),
            ((ROOM, STORE, "--tokens=2M,2000k"), "where a number occurs twice"),
            ((ROOM, STORE, "--predict=384"), "it must be WIDTH:TOKENS"),
            ((ROOM, STORE, "--config.objective=causal"), "config.objective is 'causal'; a ladder"),
            ((ROOM, STORE, "--max_operations=1e9"), "more than --max_operations=1e+09; take"),
            ((ROOM, STORE, "--learning_rate=-1"), "config.optim.learning_rate is -1"),
        ],
    ),
    "convert": (
        (),
        [
            ((), "--from is missing"),
            (
                ("--from=hf:{small}/bare", "--to=hf:{new}", "--push_to_hub=m"),
                "--push_to_hub is 'm'",
            ),
            (("--from=/nowhere", "--to=hf:{new}"), "'/nowhere' is not a folder on this machine"),
            (("--from=hf:{small}/bare", "--to=google:{new}/"), "--hidden_act=gelu_tanh"),
            (
                ("--from={run}", "--to=orbax:{new}", "--with_optimizer", "--hidden_act=gelu_erf"),
                "--with_optimizer copies a checkpoint as it is; leave out --part, --hidden_act",
            ),
        ],
    ),
    "evaluate": (
        EVALUATE,
        [
            (("--output=/no/folder/x",), "but there is no folder /no/folder; make it first"),
            (("--output={store}/manifest.json",), "which already exists; give another name"),
            (("--store={store}",), "piece 1 of "),
            (
                ("--checkpoint=hf:{small}/bare", "--sentences={small}/in.txt"),
                "has no masked language model's head",
            ),
            (("--checkpoint={run}", "--examples=16", "--seq_len=65"), "--seq_len is 65"),
            (
                ("--store={store}", "--split=test"),
                "--split is 'test'; for a store it must be heldout or",
            ),
            (
                ("--sentences={small}/in.txt", "--split=train"),
                "--split is for a store or retrieval, which",
            ),
            (("--retrieval={small}",), "there is no {small}/corpus.jsonl; BEIR's layout is"),
            (("--retrieval={small}", "--seq_len=16"), "--seq_len is for a store"),
            (("--retrieval={small}", "--store={store}"), "--retrieval excludes"),
            (("--store={store}", "--pool=cls"), "--pool is for retrieval, which"),
        ],
    ),
    "features": (
        FEATURES,
        [
            (("--input=/nowhere",), "/nowhere, which is not a file"),
            (("--input={small}/latin",), "/latin is not UTF-8: byte 0xe9 at byte offset 4"),
            (("--output={small}/in.txt",), "in.txt, which has no known extension"),
            (("--layers=3",), "--layers is '3', but the checkpoint has 2 layers: 0 is the embed"),
            (("--max_seq_length=20",), "--max_seq_length is 20; it must be from 3 to 19"),
        ],
    ),
    "baseline": (
        (),
        [
            ((), "KIND is missing; it must be one of skipgram, bilm, cove, task, ner"),
            (("glove",), "KIND is 'glove'; it must be one of skipgram, bilm"),
            (("skipgram", "--store={store}", ROOM, "--window=0"), "--window is 0; it must be 1 or"),
            (("bilm", "--store={store}", ROOM, "--window=3"), "--window=3: there is no such flag"),
            (("skipgram", "--store={store}"), "--workdir is missing"),
            (("skipgram", "--store={store}", "--workdir={small}"), "holds no baseline"),
            (("skipgram", ROOM, "--store={small}"), "is not a store"),
            (("task", *COUNTS), "KIND is missing"),
            (("task", "counts", *COUNTS, "--config.init=x"), "config.init is x; give it as --fr"),
            (("task", "counts", *COUNTS), "config.data.dir is missing"),
            (("ner", *NER, "--data_dir="), "--data_dir is missing"),
            (("ner", *NER, "--units=0"), "--units is 0"),
            (("ner", *NER, "--features=first"), "'first' is none of embeddings, "),
            (("ner", *NER, "--features=weighted_last_four"), "has 2 layers, not four"),
            (("ner", *NER, "--max_seq_length=20"), "the checkpoint has 19 positions"),
        ],
    ),
    "fill_mask": (
        (),
        [
            (("a [MASK]",), "--checkpoint is missing"),
            ((CHECKPOINT, "no mask here"), "'no mask here' has no [MASK]; write it"),
            ((CHECKPOINT,), "there is nothing to guess: give sentences with [MASK]"),
            ((RUN, "a [MASK]"), "did you mean --checkpoint?"),
            (("--checkpoint=orbax:{new}", "a [MASK]"), "holds no run of bert_jax"),
            (("--checkpoint={small}/checkpoint", "--heldout=1"), "is not the workdir of a run"),
        ],
    ),
    "replay": (
        (),
        [
            (("--step=1",), "--workdir is missing"),
            (("--workdir=nowhere", "--step=1"), "nowhere holds no run of bert_jax"),
            ((RUN, "--step=41"), "--step is 41; give a step from 1 to 40, which the run of "),
            ((RUN, "--step=1", "--rows=some"), "--rows is 'some'; it must be 1 or more"),
        ],
    ),
    "doctor": (
        (),
        [
            (("--config=configs/tiny.py", "--config.data.store=there"), "there"),
        ],
    ),
    "report": (
        (),
        [
            ((), "RUN is missing: workdir of a run"),
            (("nowhere",), "nowhere holds no run of bert_jax"),
            (("gs://bucket/run",), "gs://bucket/run is in a bucket"),
            (("{run}", "--output=/no/folder/x"), "there is no folder /no/folder"),
        ],
    ),
    "score": (
        (),
        [
            ((), "--task is missing"),
            (("--task=x", "--predictions=p"), "--task is 'x'"),
            (("--task=squad",), "--predictions is missing"),
            (("--task=squad", "--predictions=p"), "--data is missing"),
            (("--task=ner", "--predictions=p", "--data=x"), "--data and --null_odds"),
            (("--task=ner", "--predictions=p", "--null_threshold=0.5"), "--null_threshold is 0.5"),
        ],
    ),
}


@pytest.mark.parametrize("command", REFUSALS)
def test_mistakes_get_one_sentence_and_write_nothing(
    capfd, monkeypatch, stops_raise, tiny_store, trained, small, tmp_path, command
):
    monkeypatch.setattr("sys.argv", [command])  # which a command sets
    monkeypatch.setattr(LibraryLog, "hold", lambda log: None)  # up to the end of the process
    main = importlib.import_module(f"bert_jax.{command}").main
    places = {"new": tmp_path / "new", "store": tiny_store, "run": trained, "small": small}
    usual, rows = REFUSALS[command]
    for flags, words in rows:
        arguments = [flag.format(**places) for flag in (*usual, *flags)]
        capfd.readouterr()
        code = main(arguments)
        out, error = capfd.readouterr()
        assert (code, out, error[:7], error.count("\n")) == (2, "", "error: ", 1), error
        assert words.format(**places) in error
        assert not list(tmp_path.iterdir())
