"""The run that a budget of time chooses, with a machine whose speed is computed."""

import dataclasses
import fcntl
import itertools
import shutil
import time
import types

import pytest

from bert_jax import config as config_lib
from bert_jax.benchmarking import dial_run
from bert_jax.benchmarking.dial import StepTime, choose_run
from bert_jax.benchmarking.dial_settings import MUON, DialRequest, RowCounts, parse_budget
from bert_jax.config import Config, StoreFacts, overrides, total_steps
from bert_jax.logging.console import Screen
from bert_jax.model import flops
from bert_jax.planning.candidates import EncoderShape
from bert_jax.planning.fit import fit_ladder
from bert_jax.runtime import cli, workdir_lock
from bert_jax.runtime.run_record import FILE
from bert_jax.train_step.objectives import find_each
from bert_jax.trainer import feed, heldout
from data_pipeline.io import Refused
from data_pipeline.store import EXAMPLES, REFERENCES, ngrams, open_store
from tests.bert_jax.small_runs import compiled_programs_kept_in
from tests.bert_jax.tiny_models import build_store

START_SECS, LAPTOP = 8.0, 60e9  # operations per second
TOKENS = 5_000_000


class Machine:
    """Compute the time of a step from its operations; each measurement takes 5 seconds."""

    def __init__(self, flops_per_sec=LAPTOP):
        self.flops_per_sec, self.secs, self.calls = flops_per_sec, START_SECS, []

    def measure(self, config, index):
        self.secs += 5.0
        phase = config.phases[index]
        self.calls.append((config.model.hidden_size, phase.batch_size, phase.seq_len))
        row = flops.count_train_flops(config.model, phase.seq_len, phase.max_predictions_per_seq)
        return StepTime(phase.batch_size * row / self.flops_per_sec, setup_secs=3.0)


def give(*flags, shape="bert"):
    given, _ = overrides.take([f"--config.{flag}" for flag in flags], Config)
    return cli.GivenConfig(Config, f"configs/auto.py:shape={shape}", tuple(given))


def load(*flags, shape="bert"):
    given = give(*flags, shape=shape)
    return given.load(), given.overrides


def count_full_rows(seq_len):
    return RowCounts(fill=1.0, evaluated=1024)


def make_request(
    budget="30m", tokens=TOKENS, flags=(), shape="bert", shards=1, count_rows=count_full_rows
):
    config, given = load(*flags, shape=shape)
    return DialRequest(
        config=config,
        proportions=load(shape=shape)[0].model,
        given=given,
        facts=StoreFacts(vocab_size=4096),
        unique_tokens=tokens,
        count_rows=count_rows,
        shards=shards,
        budget=parse_budget(budget),
    )


def choose(budget="30m", tokens=TOKENS, speed=LAPTOP, machine=None, **rest):
    machine = machine or Machine(speed)
    request = make_request(budget, tokens, **rest)
    return choose_run(request, machine.measure, lambda: machine.secs)


def count_positions(config):
    return sum(phase.steps * phase.batch_size * phase.seq_len for phase in config.phases)


def is_between(values):
    """Return whether values rise or stay, and rise from the first to the last."""
    return all(a <= b for a, b in itertools.pairwise(values)) and values[0] < values[-1]


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["bert", "modernbert"])
def test_a_larger_budget_reads_more_in_larger_models_and_batches(shape):
    budgets = ("3m", "7m", "15m", "45m", "2h", "12h", "100h")
    runs = [choose(budget, shape=shape, tokens=300_000_000).config for budget in budgets]
    assert is_between([count_positions(run) * run.model.hidden_size for run in runs])
    assert is_between([run.model.hidden_size for run in runs])
    for optimizer in ("muon", "adamw"):
        phases = [run.phases[0] for run in runs if run.optim.name == optimizer]
        assert is_between([phase.batch_size * phase.seq_len for phase in phases])
    assert is_between([run.phases[1].seq_len for run in runs])


def test_a_device_twice_as_fast_reads_more_in_the_same_time():
    slow, fast = choose(), choose(speed=2 * LAPTOP)
    assert slow.config.model == fast.config.model
    assert count_positions(fast.config) == pytest.approx(2 * count_positions(slow.config), rel=0.02)
    assert fast.secs == pytest.approx(slow.secs, rel=0.01)
    assert choose(speed=100 * LAPTOP).config.model.hidden_size > slow.config.model.hidden_size


def test_ten_times_as_much_text_allows_a_larger_model():
    small, large = (choose("100h", tokens) for tokens in (1_000_000, 10_000_000))
    layers, width = large.config.model.num_hidden_layers, large.config.model.hidden_size
    assert small.config.model.hidden_size < width
    assert 12 * layers * width**2 <= 10 * 10_000_000


@pytest.mark.parametrize("budget", ["3m", "45m", "12h"])
def test_the_expected_time_is_the_budget(budget):
    choice, secs = choose(budget), parse_budget(budget).secs
    machine = Machine()
    in_steps = sum(
        phase.steps * machine.measure(choice.config, index).step_secs
        for index, phase in enumerate(choice.config.phases)
    )
    assert in_steps < choice.secs
    assert 0.93 * secs < choice.secs < secs


def test_short_documents_that_leave_long_rows_empty_are_counted_so():
    def count_rows(seq_len):
        return RowCounts(fill=min(1.0, 24 / seq_len), evaluated=1024)

    full, short = choose("100h"), choose("100h", count_rows=count_rows)
    assert short.config.phases[1].seq_len < full.config.phases[1].seq_len
    few = choose("100h", 1_000_000, count_rows=count_rows).config
    tokens = sum(phase.steps * phase.batch_size * 24 for phase in few.phases)
    assert 250 < tokens / 1_000_000 <= 256


def test_evaluations_a_given_distance_apart_are_part_of_the_time():
    choice, machine = choose("10m", flags=("eval.every_steps=10",)), Machine()
    phases, in_steps, in_evaluations = choice.config.phases, 0.0, 0.0
    for index, phase in enumerate(phases):
        secs = machine.measure(choice.config, index).step_secs
        in_steps += phase.steps * secs
        in_evaluations += phase.steps / 10 * 1024 / phase.batch_size * secs / 3
    assert in_evaluations > in_steps / 4
    assert 0 < choice.secs - in_steps - in_evaluations < 40  # the start and the end
    assert 0.93 * 600 < choice.secs < 600
    assert choice.config.eval.every_steps == 10


@pytest.mark.parametrize("flags", [(), ("phases[0].steps=10",), ("phases[-1].steps=20",)])
def test_a_small_store_is_not_read_more_often_than_helps(flags):
    choice = choose("2h", tokens=50_000, flags=flags)
    epochs = count_positions(choice.config) / 50_000
    assert 250 < epochs <= 256
    assert choice.secs < 0.9 * 7200
    request = make_request("2h", 50_000, flags)
    assert any(
        "less is better" in text
        for _, text in dial_run.explain(request, choice, "measured", "so far")
    )


@pytest.mark.parametrize(
    ("is_measured", "words"),
    [
        (True, "1 x 64 may be 0.10 nats better"),
        (False, "1 x 64, not measured, may be 0.10 nats better"),
    ],
)
def test_a_better_size_is_called_unmeasured_only_if_it_is(is_measured, words):
    request, choice, other = make_request(), choose(), EncoderShape(1, 64)
    also = (dataclasses.replace(choice.size, shape=other),) * is_measured
    losses = {choice.size.shape: 3.0, other: 2.9}
    choice = dataclasses.replace(choice, measured=(choice.size, *also), losses=losses)
    assert words in dict(dial_run.explain(request, choice, "measured", "so far"))["size"]


def test_model_and_masks_are_the_quickstarts_where_the_run_is_as_large():
    run = choose("3m", tokens=458_902).config
    quickstart = overrides.load(Config, "configs/quickstart.py", cli.find_config, [])
    quickstart = config_lib.resolve(quickstart, store=StoreFacts(4096))
    assert run.model == quickstart.model
    assert run.data == quickstart.data
    warmup_steps = {"warmup_steps": quickstart.optim.warmup_steps}
    assert dataclasses.replace(run.optim, **warmup_steps) == quickstart.optim
    assert run.phases[1].restart_learning_rate == quickstart.phases[1].restart_learning_rate / 2
    assert [(phase.seq_len, phase.batch_size) for phase in run.phases] == [(32, 96), (64, 48)]
    for chosen, known in zip(run.phases, quickstart.phases, strict=True):
        assert chosen.max_predictions_per_seq == known.max_predictions_per_seq
    assert run.phases[0].steps == pytest.approx(4 * run.phases[1].steps, abs=4)
    share = run.optim.warmup_steps / run.phases[0].steps
    assert share == pytest.approx(50 / 680, abs=0.002)


def test_muon_is_chosen_at_its_width_alone_and_unless_an_optimizer_is_given():
    small = choose("3m", flags=("optim.weight_decay=0.1",)).config.optim
    assert (small.name, small.learning_rate, small.weight_decay) == ("muon", 8e-3, 0.1)
    for budget, flag in (("100h", ""), ("3m", "optim.name=adamw"), ("3m", "optim.transfer=none")):
        optim = choose(budget, flags=filter(None, [flag])).config.optim
        assert (optim.name, optim.learning_rate, optim.weight_decay) == ("adamw", 3e-3, 0.01)


@pytest.mark.parametrize(
    ("flags", "transfer"), [((), ("mup", 128)), (("optim.transfer=none",), ("none", 0))]
)
def test_wider_models_have_their_rate_transferred_unless_they_are_told_not_to(flags, transfer):
    run = choose("100h", flags=flags).config
    assert run.model.hidden_size > 128
    assert (run.optim.transfer, run.optim.transfer_base_width) == transfer
    assert run.optim.learning_rate == 3e-3
    assert run.model.hidden_size // run.model.num_attention_heads == 64


@pytest.mark.parametrize(
    ("flags", "lengths"),
    [
        (["phases[0].seq_len=256"], (256, 256)),
        (["phases[1].seq_len=24"], (24, 24)),
        (["phases[1].seq_len=512"], (32, 512)),
        (["phases[0].seq_len=128", "phases[1].seq_len=64"], (128, 64)),
    ],
)
def test_rows_of_a_length_that_is_not_given_follow_the_other(flags, lengths):
    first, second = choose(flags=flags).config.phases
    assert (first.seq_len, second.seq_len) == lengths


def test_the_batch_is_explained_by_the_rows_that_devices_take():
    request = make_request("3m", flags=("phases[1].seq_len=512",), shards=8)
    machine = Machine()
    choice = choose_run(request, machine.measure, lambda: machine.secs)
    assert choice.config.phases[1].batch_size == 8
    rows = dict(dial_run.explain(request, choice, "measured", "so far"))
    assert "4,096 positions" in rows["batch"]


def test_reasons_name_what_is_given_in_one_phase_alone():
    flags = ("phases[0].batch_size=40", "phases[1].masked_lm_prob=0.2", "optim.name=muon")
    request, machine = make_request(flags=(*flags, "optim.transfer=none")), Machine()
    choice = choose_run(request, machine.measure, lambda: machine.secs)
    rows = dict(dial_run.explain(request, choice, "measured", "so far"))
    positions = choice.config.phases[1].batch_size * 64
    assert f"rows, as given, else about {positions:,} positions" in rows["batch"]
    assert rows["masking"] == "30% and 20% in training, 15% in evaluations"
    assert rows["rate"] == "0.008, Muon's best in small runs; then 0.004"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "; then 0.00035"),
        (("phases[1].restart_learning_rate=0.0003",), "; then 0.0003, as given"),
        (("phases[1].restart_learning_rate=0.0007",), ""),
    ],
)
def test_reasons_say_which_rate_is_given(flags, text):
    flags = ("optim.name=muon", "optim.transfer=none", "optim.learning_rate=0.0007", *flags)
    request, machine = make_request(flags=flags), Machine()
    choice = choose_run(request, machine.measure, lambda: machine.secs)
    rows = dict(dial_run.explain(request, choice, "measured", "so far"))
    assert rows["rate"] == f"0.0007, as given{text}"


def test_a_short_first_phase_does_not_evaluate_and_save_all_the_time():
    run = choose("10m", flags=("phases[0].steps=10",)).config
    second = run.phases[1].steps
    assert second > 1000
    assert run.eval.every_steps == second // 5
    assert run.checkpoint.every_steps == 2 * second // 5
    assert run.log_every_steps == second // 25


def test_a_batch_divides_over_devices_and_micro_batches():
    flags = ("phases[0].micro_batches=5", "phases[-1].micro_batches=2")
    first, second = choose(flags=flags, shards=8).config.phases
    assert (first.batch_size % 40, second.batch_size % 16) == (0, 0)
    assert (first.micro_batches, second.micro_batches) == (5, 2)


def test_settings_of_the_command_line_stay():
    flags = ("model.hidden_size=192", "model.num_hidden_layers=3", "phases[0].batch_size=40")
    flags += (
        "model.num_attention_heads=3",
        "optim.warmup_steps=900",
        "phases[01].steps=7",
        "optim.learning_rate=0.001",
        "log_every_steps=13",
    )
    choice = choose(flags=flags)
    run = choice.config
    assert (run.model.hidden_size, run.model.num_attention_heads) == (192, 3)
    assert (run.phases[0].batch_size, run.phases[1].steps) == (40, 7)
    assert run.optim.learning_rate == run.phases[1].restart_learning_rate == 0.001
    assert (run.log_every_steps, run.optim.warmup_steps) == (13, 900)
    assert 0.93 * 1800 < choice.secs < 1800


@pytest.mark.parametrize(("shape", "mlp_ratio"), [("bert", 4), ("modernbert", 2.625)])
@pytest.mark.parametrize(("width", "heads"), [(384, 6), (400, 5), (600, 6), (1000, 10), (32, 1)])
def test_a_given_size_keeps_the_proportions_of_the_recipe(shape, mlp_ratio, width, heads):
    size = (f"model.hidden_size={width}", "model.num_hidden_layers=6")
    model = choose("12h", flags=size, shape=shape, speed=20 * LAPTOP).config.model
    assert (model.num_hidden_layers, model.hidden_size) == (6, width)
    assert (model.num_attention_heads, model.intermediate_size) == (heads, mlp_ratio * width)


def test_a_size_that_does_not_fit_is_left_out():
    machine = Machine(100 * LAPTOP)
    largest = choose(speed=100 * LAPTOP).config.model.hidden_size

    def measure(config, index):
        if config.model.hidden_size >= largest:
            raise MemoryError("too large")
        return Machine.measure(machine, config, index)

    stub = types.SimpleNamespace(measure=measure, secs=START_SECS)
    choice = choose(machine=stub)
    assert choice.config.model.hidden_size < largest <= choice.too_large.width


def test_a_machine_whose_speed_goes_up_and_down_ends_the_search_for_a_batch():
    machine = Machine()
    speeds = itertools.cycle([8 * LAPTOP] * 2 + [LAPTOP / 8] * 2)

    def measure(config, index):
        machine.flops_per_sec = next(speeds)
        return Machine.measure(machine, config, index)

    size = ("hidden_size=128", "num_hidden_layers=2")
    stub = types.SimpleNamespace(measure=measure, secs=START_SECS)
    choose("2h", machine=stub, flags=[f"model.{field}" for field in size])
    assert 2 < len(machine.calls) <= 8


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("model.num_attention_heads=4", r"config\.model\.num_hidden_layers too"),
        ("model.hidden_size=512", r"config\.model\.num_hidden_layers too"),
        ("phases[0].steps=1000000", r"config\.budget is 30m, and the steps given"),
        ("objective=rtd", r"config\.budget"),
        ("init=hf:DIR", r"config\.budget"),
    ],
)
def test_other_recipes_and_settings_that_leave_nothing_to_choose_are_refused(flag, named):
    with pytest.raises(Refused, match=named):
        choose(flags=(flag,))


@pytest.mark.parametrize(
    "flag", ["optim.name=muon", "model.embedding_size=64", "model.mlm_transform=false"]
)
def test_what_a_wider_size_cannot_have_is_refused_before_any_size_is_measured(flag):
    machine = Machine()
    named = f"{flag.partition('=')[0]}.*or set config.optim.transfer=none"
    with pytest.raises(Refused, match=named):
        choose("2h", machine=machine, flags=(flag,))
    assert not machine.calls
    assert choose("2h", flags=(flag, "optim.transfer=none"))


def test_a_second_phase_that_is_told_not_to_restart_keeps_the_first_schedule():
    run = choose(flags=("phases[-1].restart_learning_rate=0",)).config
    second = run.phases[1]
    assert (second.restart_learning_rate, second.restart_warmup_steps) == (0, 0)
    assert run.optim.warmup_steps > 0


def test_measurements_that_take_the_budget_are_refused():
    machine = Machine()

    def measure(config, index):
        machine.secs += 3500.0 * (len(machine.calls) > 1)
        return Machine.measure(machine, config, index)

    machine.measure = measure
    with pytest.raises(Refused, match=r"config\.budget is 2h"):
        choose("2h", machine=machine)
    assert len(machine.calls) > 2


BASE_BATCH = [(128, 96, 32), (128, 48, 64)]


@pytest.mark.parametrize(
    ("speed", "compile_secs", "widths"),
    [(100, 15.0, [128, 128, 128, 128]), (300, 8.0, [128, 128, 256, 256])],
)
def test_nothing_is_measured_that_takes_what_the_budget_has_left(speed, compile_secs, widths):
    machine = Machine(speed * LAPTOP)

    def measure(config, index):
        time = Machine.measure(machine, config, index)
        setup_secs = compile_secs * config.model.num_hidden_layers
        machine.secs += setup_secs
        return StepTime(time.step_secs, setup_secs)

    request = make_request("5m", tokens=20_000_000)
    choice = choose_run(request, measure, lambda: machine.secs)
    assert [width for width, *_ in machine.calls] == widths
    assert 0.9 * 300 < choice.secs < 300


GIVEN = ["model.hidden_size=128", "model.num_hidden_layers=2"]
GIVEN += ["phases[0].batch_size=96", "phases[1].batch_size=48"]


@pytest.mark.parametrize(("budget", "speed", "flags"), [("3m", 1, ()), ("2h", 20, GIVEN)])
def test_few_sizes_and_given_batches_are_measured_once(budget, speed, flags):
    machine = Machine(speed * LAPTOP)
    choose(budget, machine=machine, flags=flags)
    assert machine.calls == BASE_BATCH


@pytest.mark.parametrize(("speed", "rows"), [(0.3, (68, 34)), (0.6, (96, 48)), (1, (96, 48))])
def test_a_run_of_few_tokens_takes_a_smaller_batch_without_another_measurement(speed, rows):
    machine = Machine(speed * LAPTOP)
    choice = choose("4m", machine=machine)
    assert machine.calls == BASE_BATCH
    assert tuple(phase.batch_size for phase in choice.config.phases) == rows
    measured = choice.measured[0].step_secs
    for now, before, row, base in zip(choice.size.step_secs, measured, rows, (96, 48), strict=True):
        assert now == pytest.approx(before * row / base)
    assert 0.9 * 240 < choice.secs <= 240


@pytest.mark.parametrize(
    ("budget", "named"),
    [
        ("0", r"\$"),
        ("0m", r"\$"),
        ("0usd@v5e:2x2", r"\$"),
        ("", r"\$"),
        ("30min", "30min"),
        ("30", "30m"),
        ("-3m", "'-3m', neither a time"),
        (".5h", "'.5h', neither a time"),
        ("30 m", "30m"),
        ("0,5h", "'0,5h', neither a time"),
        ("٠m", "'٠m', neither a time"),  # digits of another script
        (f"{'9' * 400}m", "neither a time"),
        ("40usd", "40usd@v5e"),
        ("30m@v5e:2x2", "30m@v5e:2x2.*neither a time"),
        ("40usd@v9:2x2", "v9"),
        ("40usd@v5e:3x3", "3x3"),
    ],
)
def test_a_budget_that_cannot_be_read_is_refused(budget, named):
    with pytest.raises(Refused, match=named) as refused:
        parse_budget(budget)
    assert "config.budget" in str(refused.value)


def test_budgets_in_seconds():
    assert parse_budget("1.5h").secs == 5400
    assert parse_budget("7m").secs == 420
    paid = parse_budget("40usd@v5e:2x4")
    assert parse_budget("80usd@v5e:2x4").secs == 2 * paid.secs
    assert parse_budget("80usd@v5e:4x4").secs == paid.secs
    assert paid.tpu_slice.name == "v5e:2x4"


def test_a_budget_too_small_names_one_that_is_enough():
    with pytest.raises(Refused, match=r"config\.budget is 1m") as refused:
        choose("1m", speed=LAPTOP / 3)
    needed = str(refused.value).rpartition("give ")[2].split()[0]
    assert total_steps(choose(needed, speed=LAPTOP / 3).config) >= MUON.min_steps


def test_a_store_too_small_names_the_tokens_that_are_enough():
    with pytest.raises(Refused, match=r"config\.data\.store") as refused:
        choose(tokens=30_000)
    needed = int(str(refused.value).partition("needs ")[2].split(", ")[0].replace(",", ""))
    assert choose(tokens=needed).config.model.hidden_size == 128
    with pytest.raises(Refused):
        choose(tokens=needed - 1)


def test_batches_too_large_for_a_store_are_refused():
    with pytest.raises(Refused, match=r"phases\[0\]\.batch_size"):
        choose("2h", 50_000, flags=("phases[0].batch_size=4096",), speed=100 * LAPTOP)


def test_only_a_training_takes_a_budget():
    config, _ = load()
    with pytest.raises(Refused, match=r"config\.budget is '30m'"):
        config_lib.resolve(config, store=StoreFacts(4096))


@pytest.mark.parametrize("shape", ["bert", "modernbert"])
def test_the_written_file_is_the_run(shape, tmp_path):
    flags = ("data.store=it's/a store", "mesh.preset=fsdp")
    choice, path = choose("100h", flags=flags, shape=shape), tmp_path / dial_run.CHOSEN
    text = dial_run.write_config(choice.written, parse_budget("100h"), [("size", "12 x 768")])
    path.write_text(text)
    read = overrides.load(Config, "x.py", lambda name: str(path), [])
    assert read.budget == ""
    assert config_lib.resolve(read, store=StoreFacts(4096)) == choice.config


def test_settings_given_later_change_what_follows_from_them(tmp_path):
    path = tmp_path / dial_run.CHOSEN
    path.write_text(dial_run.write_config(choose().written, parse_budget("30m"), []))
    flags = ("objective=mlm", "data.masked_lm_prob=0.5")
    later = overrides.load(Config, "x.py", lambda name: str(path), load(*flags)[1])
    run = config_lib.resolve(later, store=StoreFacts(5000))  # another store
    assert config_lib.list_objectives(run) == ["mlm", "mlm"]
    assert [phase.max_predictions_per_seq for phase in run.phases] == [16, 32]
    assert run.model.vocab_size == 5000


def settle(home, store, budget="30m", flags=()):
    given = give(f"data.store={store}", f"budget={budget}", *flags)
    return dial_run.settle_budget(given, parse_budget(budget), home, began=time.time())


def read_request(store, *flags, devices=1):
    given, screen = give(f"data.store={store}", *flags), Screen(is_writer=False)
    return dial_run.read_request(given, parse_budget("2h"), devices, screen)[0]


@pytest.mark.slow
def test_a_request_takes_rows_warm_ups_and_micro_batches_that_do_not_fit_the_recipe(tiny_store):
    flags = ("phases[0].seq_len=128", "optim.warmup_tokens=9000000", "phases[-1].micro_batches=5")
    request = read_request(tiny_store, *flags)
    assert request.config.optim.warmup_tokens == 9_000_000
    run = choose("100h", flags=flags).config
    assert (run.phases[0].seq_len, run.optim.warmup_steps) == (128, 0)
    assert run.model.max_position_embeddings >= 128 and run.phases[1].batch_size % 5 == 0
    for wrong, words in (
        ("model.max_position_embeddings=100", "max_position_embeddings is 100"),
        ("phases[1].batch_size=24", "must divide batch_size = 24"),
    ):
        with pytest.raises(Refused, match=words):
            choose("100h", flags=(*flags, wrong))
    with pytest.raises(Refused, match=r"phases\[1\]\.micro_batches is 0"):
        read_request(tiny_store, "phases[1].micro_batches=0")


def test_ready_made_examples_are_refused_as_such(tiny_store, monkeypatch):
    store = open_store(tiny_store)
    manifest = {**store.manifest, "kind": EXAMPLES, "examples": {}}
    ready_made = dataclasses.replace(store, manifest=manifest)
    monkeypatch.setattr(feed, "open_stores", lambda *_: (ready_made,))
    monkeypatch.setattr(feed, "read_facts", lambda _: feed.describe_store(manifest))
    with pytest.raises(Refused, match="holds ready-made examples, and config"):
        read_request(tiny_store)


def test_documents_of_one_sentence_are_refused_before_measuring(tmp_path, monkeypatch):
    monkeypatch.setattr(dial_run, "choose_run", lambda *_: pytest.fail("measured"))
    (tmp_path / "text.txt").write_text("\n\n".join(f"word {n} and more" for n in range(200)))
    flags = ["--train_vocab=wordpiece", "--vocab_size=150", "--holdout=0.2"]
    store = build_store(tmp_path / "text.txt", tmp_path / "store", *flags)
    with pytest.raises(Refused, match=r"next sentences.*set config\.objective=mlm"):
        settle(tmp_path / "run", store)
    assert read_request(store, "objective=mlm").unique_tokens > 0


def test_a_request_has_the_given_size_and_the_proportions_of_the_recipe(tiny_store):
    request = read_request(tiny_store, "model.hidden_size=384", "model.hidden_act=relu")
    assert request.config.model.hidden_size == 384
    model = request.proportions
    assert (model.hidden_size, model.num_attention_heads) == (128, 2)
    assert model.hidden_act == "relu"


@pytest.mark.slow
def test_a_request_counts_the_rows_of_each_length(tiny_store):
    request = read_request(tiny_store, "eval.examples=100")
    long, short = request.count_rows(512), request.count_rows(16)
    assert 0 < long.fill < short.fill <= 1  # the documents are short
    assert 0 < long.evaluated < short.evaluated == 100
    packed = read_request(tiny_store, "data.packed_examples=3").count_rows(64)
    assert packed.fill > request.count_rows(64).fill


@pytest.mark.slow
def test_the_choice_for_this_machine_is_written_and_kept(tiny_store, tmp_path, monkeypatch):
    size = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2")
    flags = [f"model.{field}" for field in (*size, "intermediate_size=32")]
    flags += ["phases[0].batch_size=8", "phases[1].batch_size=8", "phases[1].seq_len=32"]
    flags += ["phases[1].steps=20"]
    store = shutil.copytree(tiny_store, tmp_path / "store", ignore=lambda *_: [REFERENCES])
    with compiled_programs_kept_in(tmp_path):
        run = settle(tmp_path, store, "2h", flags)
    assert (run.budget, run.model.hidden_size) == ("", 16)
    assert sum(phase.steps for phase in run.phases) >= MUON.min_steps
    assert "2h" in (tmp_path / dial_run.CHOSEN).read_text()
    monkeypatch.setattr(dial_run, "choose_run", lambda *_: pytest.fail("chosen again"))
    assert settle(tmp_path, store, "2h", flags) == run
    # The text was read for the reference losses before the choice, not in the time left after it.
    monkeypatch.setattr(ngrams, "estimate_probs", lambda *_: pytest.fail("read again"))
    config = config_lib.resolve(run, store=feed.read_facts(run.data))
    source = feed.StoreFeed(feed.open_stores(run.data), config)
    for index, objective in enumerate(find_each(config)):
        assert "ngram_mlm_loss" in heldout.count_phase(source, index, objective).baseline


def test_documents_too_few_for_held_out_pairs_are_refused_before_measuring(tmp_path, monkeypatch):
    monkeypatch.setattr(dial_run, "_measure_here", lambda *_: lambda *_: pytest.fail("measured"))
    words = (f"w{number % 97} w{number % 89}." for number in itertools.count())
    text = "\n\n".join(" ".join(itertools.islice(words, 8000)) for _ in range(3))
    (tmp_path / "text.txt").write_text(text)
    flags = ["--train_vocab=wordpiece", "--vocab_size=150"]
    store = build_store(tmp_path / "text.txt", tmp_path / "store", *flags)
    named = "split heldout .*--config.objective=mlm --config.data.segments=doc_sentences"
    with pytest.raises(Refused, match=named):
        settle(tmp_path / "run", store)


def test_a_workdir_keeps_its_choice(tmp_path, monkeypatch):
    monkeypatch.setattr(dial_run, "choose_run", lambda *_: pytest.fail("measured again"))
    run = choose("45m").written
    text = dial_run.write_config(run, parse_budget("45m"), [])
    (tmp_path / dial_run.CHOSEN).write_text(text)
    kept = settle(tmp_path, "", "2h", ["optim.epsilon=1e-7"])
    assert kept.phases == run.phases
    assert (kept.budget, kept.optim.epsilon) == ("", 1e-7)


def test_a_workdir_with_another_run_is_refused(tmp_path):
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(Refused, match=str(tmp_path)):
        settle(tmp_path, "store")
    assert not (tmp_path / dial_run.CHOSEN).exists()


def test_a_workdir_in_use_or_of_the_data_is_refused_before_measuring(
    tiny_store, tmp_path, monkeypatch
):
    monkeypatch.setattr(dial_run, "choose_run", lambda *_: pytest.fail("measured"))
    kept = {"walks", *(path.name for path in tiny_store.iterdir())}  # walks: the store's own cache
    with pytest.raises(Refused, match="is the folder of the data"):
        settle(tiny_store, tiny_store)
    assert {path.name for path in tiny_store.iterdir()} <= kept
    with open(tmp_path / workdir_lock.FILE, "w") as other:  # as another start that measures
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="is in use"):
            settle(tmp_path, tiny_store)
    assert not (tmp_path / dial_run.CHOSEN).exists()


def test_dollars_are_for_the_slice_that_is_here(tmp_path):
    with pytest.raises(Refused, match=r"plan --config=configs/auto\.py .*--topology=v5e:2x4"):
        settle(tmp_path, "store", "40usd@v5e:2x4")


def test_a_budget_is_for_a_single_process():
    config, _ = load()
    with pytest.raises(Refused, match="--multihost"):
        dial_run.read_budget(config, is_multihost=True)


def test_the_law_of_our_ladder_predicts_its_largest_run():
    """The run of width 384 was not fitted: docs/results/training.md."""
    parameters = 6 * 384 * (4 * 384 + 3 * 1008)
    prediction = fit_ladder().predict(parameters, 2.43e6, 9.3e6)
    assert prediction.low < 2.767 < prediction.high
    assert prediction.loss == pytest.approx(2.767, rel=0.02)
