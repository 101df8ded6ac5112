"""Weights & Biases beside TensorBoard, with a stand-in for its package that records the calls."""

import dataclasses
import json
import math
import sys
import threading
import time
import types

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from bert_jax.config import Config, LogConfig, recorded
from bert_jax.config.finetune_schema import FinetuneConfig
from bert_jax.logging import metrics_writer
from bert_jax.logging.metrics_writer import EventsFile, MetricsFile, WandbWriter
from bert_jax.runtime import run_record
from bert_jax.trainer import fresh_start
from bert_jax.trainer.loop import TrainingRun
from tests.bert_jax.small_runs import compiled_once, config, train, train_with_stops

__all__ = ["compiled_once", "config"]  # fixtures

ASKED = dataclasses.replace(Config(), log=LogConfig(wandb="berts"))


class StandIn(types.ModuleType):
    """What bert_jax calls of wandb."""

    def __init__(self):
        super().__init__("wandb")
        self.begun, self.lines, self.ended = [], [], []
        self.fails, self.url = {}, "https://wandb.example/berts/1"

    def Settings(self, **given):
        return given

    def init(self, **given):
        self.begun.append(given)
        self._fail("init")
        return self

    def log(self, numbers, step):
        self._fail("log")
        self.lines.append((step, numbers))

    def finish(self, exit_code):
        self._fail("finish")
        self.ended.append(exit_code)

    def _fail(self, name):
        failure = self.fails.get(name)
        if isinstance(failure, float):
            time.sleep(failure)
        elif failure:
            raise failure


@pytest.fixture
def wandb(monkeypatch):
    module = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def as_sent(workdir):
    """What stands in metrics.jsonl, by the names of TensorBoard."""
    lines = [
        json.loads(line) for line in (workdir / metrics_writer.METRICS).read_text().splitlines()
    ]
    rest = [{k: v for k, v in line.items() if k not in ("step", "split")} for line in lines]
    return [
        (line["step"], {f"{line['split']}/{name}": value for name, value in numbers.items()})
        for line, numbers in zip(lines, rest, strict=True)
    ]


def test_a_second_start_continues_under_the_id_with_the_names_and_steps_of_metrics(wandb, tmp_path):
    told = []
    for first_step, summary in ((0, None), (5, {"steps": 7})):
        writer = WandbWriter(tmp_path, ASKED, told.append)
        for listener in (MetricsFile(tmp_path), writer):
            listener.on_start(first_step)
            numbers = {"loss": 3.0 - first_step, "goodput": 0.5}
            listener.on_record(first_step + 1, "train", numbers)
            listener.on_record(first_step + 1, "heldout", {"mlm_loss": 2.0})
            listener.on_close(summary)
    first, second = wandb.begun
    assert (first["project"], first["name"], first["resume"]) == ("berts", tmp_path.name, "allow")
    assert first["id"] == second["id"] == json.loads((tmp_path / "wandb.json").read_text())["id"]
    assert first["dir"] == str(tmp_path) and first["config"] == recorded(ASKED)
    assert 0 < first["settings"]["init_timeout"] <= 60 and first["settings"]["silent"]
    assert 0 < first["settings"]["finish_timeout"] <= 60
    assert wandb.ended == [1, 0] and len(wandb.lines) == 4
    assert wandb.lines == as_sent(tmp_path)
    assert told == [f"Weights & Biases: {wandb.url}"] * 2


def test_an_evaluation_that_a_killed_start_made_has_one_line(tmp_path):
    for loss in (2.0, 1.5):  # both resume from step 5; the first is killed before its next save
        file = MetricsFile(tmp_path)
        file.on_start(5)
        file.on_record(5, "heldout", {"mlm_loss": 2.0})
        file.on_record(6, "train", {"loss": loss})
        file.on_close(None)
    assert file.read_lines() == [
        {"step": 5, "split": "heldout", "mlm_loss": 2.0},
        {"step": 6, "split": "train", "loss": 1.5},
    ]


def read_events(path):
    data, read = path.read_bytes(), []
    while data:  # a TFRecord: length, checksum, content, checksum
        end = 12 + int.from_bytes(data[:8], "little")
        read.append(Event.FromString(data[12:end]))
        data = data[end + 4 :]
    return read


@pytest.mark.parametrize("step", [0, 5])
def test_tensorboard_hides_the_later_steps_of_a_start_that_was_killed(tmp_path, step):
    for _ in range(2):  # TensorBoard drops what it has of later steps at the mark of a start
        events = EventsFile(tmp_path)
        events.on_start(step)
        events.on_record(step + 1, "train", {"loss": 1.0})
        events.on_close(None)
    first, second = sorted((tmp_path / "tensorboard").iterdir(), key=lambda path: path.suffix)
    for path in (first, second):
        read = read_events(path)
        assert [each.step for each in read[1:]] == [step + 1, step + 1]
        assert read[1].session_log.status == SessionLog.START


def test_tensorboard_reads_the_starts_in_order_although_the_clock_went_back(tmp_path, monkeypatch):
    (tmp_path / "tensorboard" / "plugins").mkdir(parents=True)  # of TensorBoard's profiler
    now = time.time_ns()
    for step, secs in enumerate((0, -5000, -9000, -9000, 10)):
        monkeypatch.setattr(time, "time_ns", lambda secs=secs, step=step: now + secs * 10**9 + step)
        monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9)
        events = EventsFile(tmp_path)
        events.on_start(step)
        events.on_close(None)
    paths = sorted((tmp_path / "tensorboard").glob("*tfevents*"))  # as TensorBoard reads
    assert [read_events(path)[1].step for path in paths] == [1, 2, 3, 4, 5]


def test_tags_of_tensorboard_are_the_names_of_metrics(tmp_path):
    events = EventsFile(tmp_path)
    events.on_start(0)
    names = ["mlm_loss/web 2024", "mlm_loss/web+2024", "mlm_loss//data/web"]
    events.on_record(1, "heldout", dict.fromkeys(names, 1e300))  # beyond float32
    events.on_close(None)
    (path,) = (tmp_path / "tensorboard").iterdir()
    scalars = [event.summary.value[0] for event in read_events(path)[2:]]
    assert [scalar.tag for scalar in scalars] == [f"heldout/{name}" for name in names]
    assert {scalar.simple_value for scalar in scalars} == {math.inf}


def test_numbers_that_json_lacks_are_left_out(tmp_path):
    file = MetricsFile(tmp_path)
    file.on_start(0)
    numbers = {"mlm_loss": math.nan, "mlm_perplexity": math.inf, "mlm_accuracy": 0.5}
    TrainingRun._record(types.SimpleNamespace(listeners=[file]), 5, "heldout", numbers)
    file.on_close(None)
    assert file.read_lines() == [{"step": 5, "split": "heldout", "mlm_accuracy": 0.5}]


@pytest.mark.long
def test_a_run_that_is_stopped_and_continued(config, wandb, tmp_path):
    asked = dataclasses.replace(config, phases=config.phases[:1], log=LogConfig(wandb="berts"))
    train_with_stops(asked, tmp_path / "run", (5,))
    assert wandb.begun[0]["id"] == wandb.begun[1]["id"] and wandb.ended == [1, 0]
    assert wandb.lines == as_sent(tmp_path / "run")
    train(dataclasses.replace(asked, log=LogConfig()), tmp_path / "run")  # it may be left out again
    assert len(wandb.begun) == 2


@pytest.mark.parametrize("name", ["init", "log", "finish"])
def test_what_it_raises_is_one_line(wandb, tmp_path, name):
    wandb.fails[name] = RuntimeError("no network\nand a page more")
    told = []
    writer = WandbWriter(tmp_path, ASKED, told.append)
    for step in (1, 2):
        writer.on_record(step, "train", {"loss": 1.0})
    writer.on_close({})
    told = [text for text in told if wandb.url not in text]
    assert len(told) == 1 and "no network" in told[0] and "page" not in told[0]


@pytest.mark.parametrize("name", ["init", "log", "finish"])
def test_what_hangs_is_not_waited_for(wandb, tmp_path, name, monkeypatch):
    monkeypatch.setattr(metrics_writer, "UPLOAD_SECS", 0.2)
    wandb.fails[name] = 30.0
    told, began = [], time.monotonic()
    writer = WandbWriter(tmp_path, ASKED, told.append)
    for step in range(100):
        writer.on_record(step, "train", {"loss": 1.0})
    writer.on_close({})
    assert time.monotonic() - began < 5.0
    assert "has not taken all numbers" in told[-1] and "metrics.jsonl" in told[-1]


def test_what_comes_after_the_end_is_not_told(wandb, tmp_path, monkeypatch):
    """Only the run's thread prints, and nothing after the writer is closed."""
    monkeypatch.setattr(metrics_writer, "UPLOAD_SECS", 0.0)
    ends = threading.Event()
    monkeypatch.setattr(wandb, "finish", lambda exit_code: ends.wait() and 1 / 0)
    told = []
    writer = WandbWriter(tmp_path, ASKED, lambda text: told.append(threading.current_thread()))
    writer.on_close({})
    count = len(told)
    ends.set()
    writer._thread.join()
    assert len(told) == count and {*told} == {threading.current_thread()}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id": 7}', '{"id": "../up"}', "\0"])
def test_a_damaged_id_is_one_line_and_no_other_run(wandb, tmp_path, content):
    (tmp_path / metrics_writer.WANDB_ID).write_text(content)
    told = []
    WandbWriter(tmp_path, ASKED, told.append).on_close({})
    assert len(told) == 1 and metrics_writer.WANDB_ID in told[0] and not wandb.begun
    assert (tmp_path / metrics_writer.WANDB_ID).read_text() == content


def test_without_the_package_it_is_refused_before_anything_is_written(
    config, tmp_path, monkeypatch
):
    asked = dataclasses.replace(config, log=LogConfig(wandb="berts"))
    for module in (None, types.ModuleType("wandb")):  # a folder that is called so is a module too
        monkeypatch.setitem(sys.modules, "wandb", module)
        with pytest.raises(ValueError, match=r"config\.log\.wandb is 'berts'.*pip install wandb"):
            train(asked, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_is_no_part_of_a_run():
    for kind in (Config, FinetuneConfig):
        asked = dataclasses.replace(kind(), log=LogConfig(wandb="berts"))
        assert recorded(asked) == recorded(kind()) and "log" not in recorded(asked)
    # A run that begins anew is another one there too.
    assert (
        metrics_writer.WANDB_ID in run_record.RECORDS
        and fresh_start.run_record.RECORDS is run_record.RECORDS
    )
