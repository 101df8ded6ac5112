"""Every entry where JAX_PLATFORMS names a device that this machine lacks: one line, exit code 2."""

import pytest

from bert_jax.__main__ import MODULES
from tests.faults.runs import ONE_PHASE

pytestmark = pytest.mark.slow

TABLE = [
    *("--config=configs/finetune/table.py", "--config.data.text_column=text"),
    *("--config.data.label_column=is_long", "--config.data.dir={small}"),
]
RUN = [*ONE_PHASE, "--config.data.store={store}"]
ARGUMENTS = {
    "train": [*RUN, "--workdir={new}"],
    "finetune": [*TABLE, "--config.init={checkpoint}", "--workdir={new}"],
    "benchmark": RUN,
    "doctor": RUN,
    "convert": ["--from={checkpoint}", "--to=orbax:{new}", "--initialize_missing=true"],
    "evaluate": ["--checkpoint={checkpoint}", "--sentences={small}/words.txt"],
    "baseline": ["skipgram", "--store={store}", "--workdir={new}"],
    "fill_mask": ["--checkpoint={checkpoint}", "a [MASK] ."],
    "features": ["--checkpoint={checkpoint}", "--input={small}/in.txt", "--output={new}.npz"],
}

# They compute nothing by themselves, or what they start ends as above.
WITHOUT = {
    *("build", "inspect", "grow_vocab", "import_tfrecord", "export_tfrecord", "store_speed"),
    *("python_docs", "config", "plan", "replay", "report", "score"),
}
OF_OTHERS = {"ladder", "study", "verify_resume"}
NEEDS_A_FINE_TUNED_MODEL = {"predict"}


def test_every_entry_has_its_place_here():
    assert ARGUMENTS.keys() | WITHOUT | OF_OTHERS | NEEDS_A_FINE_TUNED_MODEL == MODULES.keys()


@pytest.mark.parametrize(
    ("entry", "platforms"),
    [
        *(("train", "xyz"), ("features", "cuda")),
        *(pytest.param(e, "cuda", marks=pytest.mark.long) for e in ARGUMENTS if e != "features"),
    ],
)
def test_a_device_that_is_missing_is_said_in_one_line(
    forked, tiny_store, small, tmp_path, entry, platforms
):
    places = {"store": tiny_store, "small": small, "checkpoint": small / "checkpoint"}
    given = [argument.format(new=tmp_path / "new", **places) for argument in ARGUMENTS[entry]]
    done = forked(MODULES[entry], *given, code=2, platforms=platforms)
    assert done.stderr.startswith(f"error: JAX_PLATFORMS is {platforms!r}, "), done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())
