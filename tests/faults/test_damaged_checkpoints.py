"""A run whose newest checkpoint is damaged, as it is started: with one process and with two."""

import contextlib
import dataclasses
import shutil

import gcsfs
import jax
import numpy as np
import pytest
from etils import epath

from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig
from bert_jax.train_step import state
from data_pipeline.io import address
from tests.bert_jax.tiny_models import CONFIG, MODEL, setting
from tests.faults.bucket_server import NAME, fake_bucket
from tests.faults.runs import TINY, lines_of, saved_steps, training

pytestmark = pytest.mark.long

SHORT = [
    *TINY,
    "--config.phases[0].steps=30",
    "--config.optim.warmup_steps=5",
    "--config.checkpoint.every_steps=10",
    "--config.log_every_steps=10",
]


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def finished(request, tiny_store, tmp_path_factory):
    """A run of 40 steps that came to its end: processes, flags, workdir."""
    flags = [*SHORT, f"--config.data.store={tiny_store}"]
    workdir = tmp_path_factory.mktemp("finished") / "run"
    with training(*flags, workdir=workdir, processes=request.param) as run:
        run.finish()
    assert saved_steps(workdir) == [20, 30, 40]
    return request.param, flags, workdir


def zero_a_page(checkpoints):
    """Zero a page in the largest file of the newest checkpoint, which holds arrays."""
    files = (path for path in (checkpoints / "40").rglob("*") if path.is_file())
    path = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(4096)
    path.write_bytes(content)


def make_a_later_folder(checkpoints):
    (checkpoints / "99" / "default").mkdir(parents=True)


def empty_all(checkpoints):
    for step in (20, 30, 40):
        (checkpoints / str(step) / "state" / "manifest.ocdbt").write_bytes(b"")


def case(row, words, *values):
    return pytest.param(*values, marks=pytest.mark.fault(row, words))


@pytest.mark.parametrize(
    ("harm", "code", "words"),
    [
        case(
            *(4, "the newest checkpoint of a run of one process, and of two"),
            *(zero_a_page, 0, "moved to {}/checkpoints_damaged/40"),
        ),
        case(
            *(5, "an empty folder named as a later step, for one process and for two"),
            *(make_a_later_folder, 0, "99 holds no file"),
        ),
        case(
            *(4, "every checkpoint of a run of one process, and of two"),
            *(empty_all, 2, "holds 3 checkpoints and none is intact"),
        ),
    ],
)
def test_a_run_resumes_from_the_newest_whole_checkpoint(finished, tmp_path, harm, code, words):
    processes, flags, before = finished
    workdir = shutil.copytree(before, tmp_path / "run")
    harm(workdir / "checkpoints")
    with training(*flags, workdir=workdir, processes=processes) as run:
        said = run.finish(code)
        assert all("Traceback" not in run.output(number) for number in range(processes))
    assert said.count(words.format(workdir)) == 1
    assert (workdir / "checkpoints_damaged" / "40").is_dir() is (harm is zero_a_page)
    assert saved_steps(workdir) == [20, 30, 40]
    assert lines_of(workdir) == lines_of(before)


def another_manifest(bucket, newest):
    (epath.Path(f"gs://{NAME}/{newest}") / "state" / "manifest.ocdbt").write_bytes(b"mine")


def a_missing_chunk(bucket, newest):
    """Of the arrays, which TensorStore reads, with a number in its path that is a status, too."""
    for name in bucket.names(newest):
        if "/d/" in name:
            bucket.delete(name)


@pytest.mark.fault(
    4, "an object of the newest checkpoint on gs:// holds something else, or is gone"
)
@pytest.mark.parametrize("harm", [another_manifest, a_missing_chunk])
def test_a_damaged_checkpoint_in_a_bucket_is_moved_within_it(monkeypatch, harm):
    with fake_bucket() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        gcsfs.GCSFileSystem.clear_instance_cache()
        address.use_one_driver()
        small = dataclasses.replace(MODEL, num_hidden_layers=1)
        tiny = setting(dataclasses.replace(CONFIG, model=small), 1)
        folder = epath.Path(f"gs://{NAME}/runs/mine/checkpoints")
        states = {
            step: state.init_state(tiny.model, tiny.tx, tiny.where, seed=step) for step in (4, 500)
        }
        said = []
        with contextlib.closing(Checkpoints(folder, CheckpointConfig(), tiny.model)) as checkpoints:
            for step, one in states.items():
                checkpoints.save(step, one, {"step": step})
            checkpoints.wait()
            harm(bucket, "runs/mine/checkpoints/500")
            held = set(bucket.names("runs/mine/checkpoints/500"))
            found = checkpoints.restore(
                lambda step: state.make_abstract_state(tiny.model, tiny.tx, tiny.where),
                said.append,
            )
            checkpoints.save(500, states[500], {"step": 500})  # as the run will, once it is there
        assert found is not None and found[1] == {"step": 4}
        jax.tree.map(np.testing.assert_array_equal, found[0], states[4])
        (line,) = said
        assert line.endswith(
            f"moved to gs://{NAME}/runs/mine/checkpoints_damaged/500, the run resumes from step 4"
        )
        moved = bucket.names("runs/mine/checkpoints_damaged/500")
        aside = {name.replace("_damaged/", "/") for name in moved}
        assert aside == held
        assert "runs/mine/checkpoints/500/commit_success.txt" in bucket.names(
            "runs/mine/checkpoints"
        )
    gcsfs.GCSFileSystem.clear_instance_cache()
