"""The beginning of a run: at step 0, resumed, refused, or with earlier records quarantined."""

import contextlib
import dataclasses
import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from bert_jax.checkpoint import directory
from bert_jax.config import CheckpointConfig
from bert_jax.runtime import run_record
from bert_jax.runtime.workdir import Workdir, open_local_workdir
from bert_jax.trainer import fresh_start, loop
from bert_jax.trainer import setup as setup_lib
from data_pipeline.io import Refused
from data_pipeline.io.small_files import DamagedFile
from tests.bert_jax.checkpoint.test_manager import fill_disk
from tests.bert_jax.small_runs import begun, prepare
from tests.damages import edit_json, flip_a_bit

LINE = '{"step": 6, "split": "train", "loss": 5.0}\n'
ATTEMPT = '{"began": 1.0, "at": 2.0, "step": 6, "secs": {"training": 1.0}}\n'
PROGRESS = {
    "metrics.jsonl": LINE,
    "attempts.jsonl": ATTEMPT,
    "bad_steps.jsonl": LINE,
    "left_out.json": '[{"after_step": 5, "through_step": 6, "reason": "x"}]\n',
    "summary.json": '{"steps": 6}\n',
}


@pytest.fixture
def config(first_config):
    return first_config


def fresh(config):
    return dataclasses.replace(config, checkpoint=CheckpointConfig(fresh=True))


@pytest.fixture
def workdir(first_saved, tmp_path):
    return shutil.copytree(first_saved, tmp_path / "run")


def contents(workdir):
    """Every file but the lock, which whoever looks takes, by its name; folders hold None."""
    return {
        str(path.relative_to(workdir)): path.read_bytes() if path.is_file() else None
        for path in sorted(workdir.rglob("*"))
        if path.name != "lock"
    }


def rewrite_receipt(checkpoint, **changes):
    path = checkpoint / "receipt" / "receipt.json"
    content = json.loads(path.read_text()) | changes
    content.pop("sha256")
    path.write_text(directory.seal(content))


def removed(checkpoints):
    shutil.rmtree(checkpoints)


def emptied(checkpoints):
    shutil.rmtree(checkpoints)
    checkpoints.mkdir()


def renamed(checkpoints):
    (checkpoints / "0").rename(checkpoints / "0.orbax-checkpoint-tmp")


def strays(checkpoints):
    emptied(checkpoints)
    (checkpoints / "9" / "default").mkdir(parents=True)


def unreadable(checkpoints):
    (checkpoints / "0" / "receipt" / "receipt.json").write_text("{")


@pytest.fixture
def ends_at_once(monkeypatch):
    """A run of no step, whose summary is where it began."""
    monkeypatch.setattr(loop.TrainingRun, "is_done", True)
    monkeypatch.setattr(loop.TrainingRun, "_compute_scores", lambda self, index: {})
    monkeypatch.setattr(loop.TrainingRun, "_summarize", lambda self: {"step": self.step})


@pytest.mark.slow
def test_a_run_stopped_before_its_first_step_goes_on_from_step_0(
    config, workdir, ends_at_once, capsys
):
    made = json.loads((workdir / "checkpoints/0/receipt/receipt.json").read_text())["run"]
    setup = prepare(config, workdir)
    assert made["config"]["seed"] == config.seed
    assert made["store"]["digest"] == setup.feed.stores[0].digest
    assert len(made["vocabulary"]["sha256"]) == 64
    assert made["code"]["packages"].keys() >= {"jax", "jaxlib", "flax", "optax", "numpy"}
    assert made["processes"] == 1
    first = begun(setup)
    jax.tree.map(np.testing.assert_array_equal, begun(setup), first)
    loop.train(setup)
    assert "resuming at step 0 of 9" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_cannot_save_ends_before_its_first_step(config, tmp_path, monkeypatch):
    fill_disk(monkeypatch)
    with pytest.raises(OSError, match=r"saving the checkpoint of step 0 failed, no space is left"):
        loop.train(prepare(config, tmp_path))
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.fault(21, "checkpoints/ is removed, emptied, renamed or unreadable beside records")
@pytest.mark.parametrize(
    "lose",
    [
        removed,
        *(pytest.param(one, marks=pytest.mark.long) for one in (emptied, renamed, strays)),
        unreadable,
    ],
)
def test_records_without_a_checkpoint_are_refused_or_moved_with_fresh(
    config, workdir, lose, capsys
):
    (workdir / "metrics.jsonl").write_text(LINE)
    lose(workdir / "checkpoints")
    before = contents(workdir)
    with pytest.raises(Refused, match=r"(?s)nothing was changed.*--config\.checkpoint\.fresh"):
        prepare(config, workdir)
    assert contents(workdir) == before
    assert begun(prepare(fresh(config), workdir)).step == 0
    assert "before-fresh-1; the run starts at step 0" in capsys.readouterr().out
    assert contents(workdir / "before-fresh-1") == before
    assert not (workdir / "metrics.jsonl").exists()


def test_a_supervisor_that_starts_it_again_with_fresh_moves_nothing_more(config, workdir):
    receipt = workdir / "checkpoints" / "0" / "receipt" / "receipt.json"
    checkpoint = receipt.read_bytes()
    (workdir / "metrics.jsonl").write_text(LINE)
    assert begun(prepare(fresh(config), workdir)).step == 0
    assert receipt.read_bytes() == checkpoint
    assert (workdir / "metrics.jsonl").read_text() == LINE
    assert not list(workdir.glob("before-fresh-*"))


def test_changes_in_the_record_show_progress(config, workdir):
    removed(workdir / "checkpoints")
    change = {"since_step": 6, "setting": "seed", "before": 1, "now": 0}
    edit_json(workdir / "run.json", lambda shown: shown.update(changes=[change]))
    with pytest.raises(Refused, match=r"run\.json"):
        prepare(config, workdir)


DAMAGED = r": damaged.*checkpoint\.fresh"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        *((name, text.encode(), "") for name, text in PROGRESS.items()),
        ("metrics.jsonl", b"\0" * 40 + b"\n", DAMAGED),
        ("metrics.jsonl", b'{"step"\n{}\n\n', DAMAGED),
        ("metrics.jsonl", b"\xff\xfe\n1\n\n", DAMAGED),
        ("metrics.jsonl", b"[" * 10**5 + b"\n", DAMAGED),
        ("run.json", b'{"fixed": {"seed\n', DAMAGED),
        ("run.json", b'{"changes": 5}', DAMAGED),
    ],
)
def test_a_record_shows_progress_also_one_that_nobody_can_read(
    config, workdir, name, content, words
):
    removed(workdir / "checkpoints")
    (workdir / name).write_bytes(content)
    with pytest.raises(Refused, match=name + words):
        prepare(config, workdir)


@pytest.mark.slow
def test_a_run_killed_before_its_first_save_begins_by_itself(config, workdir):
    removed(workdir / "checkpoints")
    (workdir / "attempts.jsonl").write_text(ATTEMPT.replace("6", "0"))
    (workdir / "metrics.jsonl").write_text("")
    assert begun(prepare(config, workdir)).step == 0
    assert not list(workdir.glob("before-fresh-*"))


@pytest.mark.parametrize("step", [5, 6])
def test_records_that_a_branch_copied_are_no_progress(step, workdir):
    removed(workdir / "checkpoints")
    (workdir / "metrics.jsonl").write_text(LINE)
    edit_json(workdir / "run.json", lambda shown: shown.update(branch={"run": "/a", "step": step}))
    storage = open_local_workdir(workdir)
    if step == 6:  # killed in its first save
        assert not fresh_start.is_due(storage, False, 1.0)
        return
    with pytest.raises(Refused, match=r"metrics\.jsonl: step 6"):
        fresh_start.is_due(storage, False, 1.0)


def test_fresh_is_no_part_of_a_run(config, workdir):
    prepare(fresh(config), workdir)
    shown = json.loads((workdir / "run.json").read_text())
    assert shown["changes"] == [] and "fresh" not in shown["config"]["checkpoint"]
    assert run_record.read(workdir).config.checkpoint == config.checkpoint


@pytest.mark.slow
def test_arrays_that_do_not_verify_are_quarantined_with_fresh(config, workdir, ends_at_once):
    (workdir / "metrics.jsonl").write_text(LINE)
    for path in (workdir / "checkpoints" / "0" / "state").rglob("d/*"):
        flip_a_bit(path)
    with pytest.raises(Refused, match="none is intact"):
        loop.train(prepare(config, workdir))
    assert (workdir / "metrics.jsonl").read_text() == LINE
    assert loop.train(prepare(fresh(config), workdir)) == {"step": 0, "findings": []}
    assert (workdir / "before-fresh-1" / "metrics.jsonl").read_text() == LINE
    assert (workdir / "before-fresh-1" / "checkpoints" / "0").is_dir()
    assert (workdir / "checkpoints" / "0").is_dir()


def test_of_a_bucket_both_places_are_quarantined(tmp_path):
    home, bucket = tmp_path / "home", tmp_path / "bucket"
    for root in (home, bucket):
        (root / "tensorboard").mkdir(parents=True)
        (root / "tensorboard" / "events").write_text(root.name)
        (root / "metrics.jsonl").write_text(LINE)
    (bucket / "checkpoints" / "9").mkdir(parents=True)
    (bucket / "before-fresh-1").mkdir()
    storage = Workdir(home, "gs://a/b", epath.Path(bucket / "checkpoints"), bucket=object())
    assert fresh_start.is_due(storage, True, 1.0)
    fresh_start.quarantine(storage, "vocab.txt", 1.0, print)
    assert {path.name for path in bucket.iterdir()} == {"before-fresh-1", "before-fresh-2"}
    assert (bucket / "before-fresh-2" / "checkpoints" / "9").is_dir()
    assert (home / "before-fresh-2" / "tensorboard" / "events").read_text() == "home"
    assert [path.name for path in home.iterdir()] == ["before-fresh-2"]


def test_what_the_other_processes_do_is_what_process_0_found(monkeypatch, tmp_path):
    monkeypatch.setattr(fresh_start.processes, "number", lambda: 1)
    storage = Workdir(tmp_path, "run", tmp_path / "checkpoints")
    for kind, due in (("", False), ("yes", True)):
        answer = f"found {kind}"
        monkeypatch.setattr(fresh_start.processes, "agree", lambda *_, a=answer: [a, ""])
        assert fresh_start.is_due(storage, False, 1.0) is due
    for answer, kind, words in (
        ("refused because", Refused, "^because$"),
        ("failed the disk", OSError, "^the disk$"),
    ):
        monkeypatch.setattr(fresh_start.processes, "agree", lambda *_, a=answer: [a, ""])
        with pytest.raises(kind, match=words):
            fresh_start.is_due(storage, True, 1.0)
    assert not list(pathlib.Path(tmp_path).iterdir())


def test_every_process_begins_with_the_record_that_process_0_read(config, workdir, monkeypatch):
    """The others' copies of a bucket may lack it, and with it the kernels that were checked."""
    record = json.loads((workdir / "run.json").read_text()) | {"kernels": {"flash": "sound"}}
    ask_first = setup_lib.processes.ask_first

    def hear(name, ask, limit_secs):
        return json.dumps([record, ""]) if "record" in name else ask_first(name, ask, limit_secs)

    def settle_kernels(build, record, screen):
        raise Refused(str(record.get("kernels")))

    monkeypatch.setattr(setup_lib.processes, "ask_first", hear)
    monkeypatch.setattr(setup_lib, "settle_kernels", settle_kernels)
    with pytest.raises(Refused, match="'flash': 'sound'"):
        prepare(config, workdir)


def test_the_block_names_the_step_that_was_restored(config, workdir, ends_at_once, capsys):
    checkpoints = workdir / "checkpoints"
    shutil.copytree(checkpoints / "0", checkpoints / "7")
    rewrite_receipt(checkpoints / "7", step=7)
    for data in (checkpoints / "7" / "state").rglob("d/*"):
        flip_a_bit(data)
    shutil.copytree(checkpoints / "0", checkpoints / "09")
    shutil.copytree(checkpoints / "0", checkpoints / "8.orbax-checkpoint-tmp-3")
    assert loop.train(prepare(config, workdir)) == {"step": 0, "findings": []}
    shown = capsys.readouterr().out
    assert "resuming at step 0 of 9" in shown and "resuming at step 7" not in shown


BROKEN = {
    "missing": None,
    "cut": b'{"fixed": {"seed',
    "empty": b"",
    "random": b"\xff\x00" * 99,
    "nested": b'{"config":' * 10**5,
    "a list": b"[]",
    "wrong types": b'{"fixed": [], "config": {"model": 7, "phases": 8}, "vocabulary": "v"}',
}


@pytest.mark.slow
@pytest.mark.fault(23, "run.json is missing, cut, random, nested or of other types")
@pytest.mark.parametrize(
    "name",
    [
        *("missing", "cut", "nested", "wrong types"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("empty", "random", "a list")),
    ],
)
def test_a_lost_run_record_comes_back_from_the_newest_checkpoint(config, workdir, name, capsys):
    path = workdir / "run.json"
    before = json.loads(path.read_text())
    path.unlink()
    if BROKEN[name] is not None:
        path.write_bytes(BROKEN[name])
    (workdir / "metrics.jsonl").write_text(LINE)
    with pytest.raises(ValueError, match=r"run\.json.* (--workdir|restores it)"):
        run_record.read(workdir)
    assert begun(prepare(config, workdir)).step == 0
    assert json.loads(path.read_text()) == before
    assert (workdir / "metrics.jsonl").read_text() == LINE
    assert "written again from the receipt of the newest checkpoint" in capsys.readouterr().out
    if BROKEN[name] is not None:
        assert (workdir / "run.json.damaged").read_bytes() == BROKEN[name]
    other = dataclasses.replace(config, seed=9)
    path.write_bytes(BROKEN[name] or b"")
    with pytest.raises(ValueError, match=r"config\.seed = 0, this config says 9"):
        prepare(other, workdir)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", b"\xff" * 9 + b"\n"),
        ("attempts.jsonl", b"7\n"),
        ("attempts.jsonl", b'{"began": NaN, "at": 1.0, "step": 0, "secs": {}}\n'),
        ("attempts.jsonl", b'{"began": 1, "at": 1, "step": 0, "secs": {"saving": Infinity}}\n'),
        ("bad_steps.jsonl", b"[" * 10**5 + b"\n"),
    ],
)
def test_damaged_records_are_refused_before_anything_is_changed(config, workdir, name, content):
    (workdir / name).write_bytes(content)
    before = contents(workdir)
    with pytest.raises(DamagedFile, match=name):
        prepare(config, workdir)
    assert contents(workdir) == before


def test_metrics_that_end_in_nuls_are_resumed_and_kept(config, workdir, capsys):
    (workdir / "metrics.jsonl").write_bytes(LINE.encode() + b"\0" * 4096)
    prepare(config, workdir)
    assert (workdir / "metrics.jsonl").read_text() == LINE
    assert (workdir / "metrics.jsonl.damaged").read_bytes() == b"\0" * 4096
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "4,096" in one]
    assert "metrics.jsonl.damaged" in line


def test_an_unknown_number_in_a_receipt_is_one_sentence(config, workdir):
    rewrite_receipt(workdir / "checkpoints" / "0", numbers={"luck": 7.0})
    with pytest.raises(DamagedFile, match="luck"):
        begun(prepare(config, workdir))


@pytest.mark.parametrize(
    ("setting", "since_step", "is_refused"),
    [
        ("optim.beta2", 3, True),
        ("phases[0].steps", 3, True),
        ("optim.beta2", 0, False),  # no step was taken before
        ("checkpoint.every_steps", 3, False),
        ("data.store", 3, False),  # moved: its digest is pinned
    ],
)
def test_a_change_that_moves_weights_forbids_a_branch(
    tmp_path, monkeypatch, setting, since_step, is_refused
):
    change = {"setting": setting, "since_step": since_step, "before": 1, "now": 2}
    words = {"file": "vocab.txt", "lowercase": True}
    record = {"config": {"phases": []}, "fixed": {}, "vocabulary": words, "store": {}}
    receipt = {"run": record | {"changes": [change]}}
    monkeypatch.setattr(directory, "find_steps", lambda folder: {6: folder / "6"})
    monkeypatch.setattr(directory, "read_receipt", lambda path: receipt)
    refusal = pytest.raises(Refused, match=f"config.{re.escape(setting)} was changed after step 3")
    with refusal if is_refused else contextlib.nullcontext():
        assert fresh_start._read_trunk(fresh_start.Trunk(str(tmp_path), 6)) == receipt


def test_a_copy_that_cannot_be_made_names_the_flag_of_its_command(tmp_path):
    words = r"^--from is .*@6, and .* has no checkpoint of step 6; it has none$"
    with pytest.raises(Refused, match=words):
        fresh_start.publish(fresh_start.Trunk(str(tmp_path), 6), tmp_path)
