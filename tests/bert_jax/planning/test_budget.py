"""What a budget buys: against sums by hand, all sizes tried, and budgets that buy too little."""

import dataclasses
import json
import math

import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax.config import Config, ModelConfig, OptimConfig, Phase, validate
from bert_jax.model import flops
from bert_jax.planning import budget, budget_report, slices
from bert_jax.planning.aot_compile import TooLarge
from bert_jax.planning.budget import Budget, BudgetRequest, CorpusFacts, choose
from bert_jax.planning.candidates import FAMILY, EncoderShape, reshape
from bert_jax.planning.chip_prices import Price
from bert_jax.planning.fit import fit, fit_english
from bert_jax.planning.law import Point
from bert_jax.trainer.feed import StoreFeed
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import open_store
from tests.bert_jax.planning.test_aot_compile import STEP
from tests.bert_jax.tiny_models import resolved, with_setting

V5E = slices.find_slice("v5e:2x2")
PHASES = (Phase(128, 900, batch_size=64), Phase(512, 100, batch_size=16))
CONFIG = config_lib.resolve(
    Config(
        model=ModelConfig(vocab_size=4096),
        phases=PHASES,
        optim=OptimConfig(warmup_steps=50),
    )
)
LARGE_TEXT = CorpusFacts(2e9, (100.0, 400.0), (2e7, 5e6))
HUGE_TEXT = CorpusFacts(2e12, (100.0, 400.0), (2e10, 5e9))
SMALL_TEXT = CorpusFacts(7e6, (100.0, 400.0), (7e4, 17.5e3))
TINY_TEXT = CorpusFacts(20.0, (20.0, 20.0), (1.0, 1.0))
TEXT = """HloModule jit_step

ENTRY %main (p: f32[8]) -> f32[8] {{
  %f = f32[8]{{0}} fusion(%p), calls=%x, backend_config={{"estimated_cycles":"{}"}}
}}
"""


def request(usd=20.0, corpus=LARGE_TEXT, config=CONFIG, price=1.2, **rest) -> BudgetRequest:
    spent = Budget(usd, price, V5E.chips, Price("v5e", price, price, "here", "there", "today"))
    return BudgetRequest(config, V5E, spent, corpus, fit_english(), **rest)


def step_secs_of(config, index, peak_share=0.4) -> float:
    """A step that reaches this share of the peak of four chips of 197 TFLOP/s."""
    phase = config.phases[index]
    row = flops.count_train_flops(config.model, phase.seq_len, phase.max_predictions_per_seq)
    return phase.batch_size * row / (4 * 197e12 * peak_share)


class Compiler:
    """Compiles nothing: gives the program of a step of a known time, and remembers the calls."""

    def __init__(self, peak_share=0.4, too_large=()):
        self.peak_share, self.too_large, self.calls = peak_share, too_large, []

    def __call__(self, parts):
        self.calls.append([(c.model.hidden_size, c.phases[index].seq_len) for c, index in parts])
        return [self.compile(config, index) for config, index in parts]

    def compile(self, config, index):
        if config.model.hidden_size in self.too_large:
            return TooLarge(40 * 2**30, 16 * 2**30)
        cycles = round(step_secs_of(config, index, self.peak_share) * 1.5e9)
        return dataclasses.replace(STEP, text=TEXT.format(cycles))


def buy_by_hand(asked: BudgetRequest, shape: EncoderShape, peak_share=0.4):
    """Steps, tokens and loss of a size, on demand, with a start of less than 5%."""
    config = reshape(asked.config, shape)
    paid_secs = 3600 * asked.budget.usd / (asked.budget.usd_per_chip_hour * 4)
    mean_secs = 0.9 * step_secs_of(config, 0, peak_share) + 0.1 * step_secs_of(
        config, 1, peak_share
    )
    count = 0.95 * paid_secs / mean_secs
    tokens = count * (0.9 * 64 * 100 + 0.1 * 16 * 400)
    weights = shape.layers * 12 * shape.width**2
    return count, tokens, asked.law.predict(weights, tokens, asked.corpus.unique_tokens).loss


@pytest.mark.parametrize("usd", [10, 50, 2000])
def test_the_choice_is_the_lowest_loss_of_all_sizes_and_the_sums_are_right(usd):
    asked, compiler = request(usd), Compiler()
    plan = choose(asked, compiler)
    by_hand = {shape.name: buy_by_hand(asked, shape) for shape in FAMILY}
    best = min(by_hand, key=lambda name: by_hand[name][2])
    count, tokens, loss = by_hand[best]
    assert plan.chosen.size == best and len(compiler.calls) <= 2
    assert plan.predicted_heldout_loss == pytest.approx(loss, rel=1e-3)
    assert plan.tokens == pytest.approx(tokens, rel=1e-3)
    assert sum(plan.chosen.steps) == pytest.approx(count, rel=1e-3)
    assert plan.interval[0] < plan.predicted_heldout_loss < plan.interval[1]
    bill = sum(phase.dollars for phase in plan.phases) + plan.reserve_dollars
    assert plan.dollars == pytest.approx(bill) == pytest.approx(usd, rel=2e-3)
    assert plan.dollars <= usd
    # Read by rows: 64 x 90% of 20 million, 16 x 10% of 5 million.
    epochs = plan.chosen.steps[0] * 64 / 2e7 + plan.chosen.steps[1] * 16 / 5e6
    assert plan.chosen.epochs == pytest.approx(epochs)
    assert [phase.speed for phase in plan.phases] == ["compiled", "compiled"]
    assert plan.phases[0].step_secs == pytest.approx(
        step_secs_of(reshape(CONFIG, next(s for s in FAMILY if s.name == best)), 0)
    )


def test_both_phases_are_compiled_at_once_and_a_rival_only_if_it_could_win():
    compiler = Compiler()
    choose(request(), compiler)
    for call in compiler.calls:
        assert [length for _, length in call] == [128, 512]
        assert len({width for width, _ in call}) == 1
    slow = Compiler(peak_share=0.01)  # then the largest is no longer the best
    assert choose(request(2000), slow).chosen.size != choose(request(2000), Compiler()).chosen.size


def test_half_and_twice_the_budget_surround_it():
    plan = choose(request(20.0), Compiler())
    half, twice = choose(request(10.0), Compiler()), choose(request(40.0), Compiler())
    assert plan.half.predicted_heldout_loss > plan.predicted_heldout_loss
    assert plan.twice.predicted_heldout_loss < plan.predicted_heldout_loss
    for neighbor, own in ((plan.half, half), (plan.twice, twice)):
        assert neighbor.predicted_heldout_loss == pytest.approx(
            own.predicted_heldout_loss, rel=0.02
        )
    losses = [each.predicted_heldout_loss for each in plan.candidates]
    assert losses == sorted(losses) and losses[0] == plan.predicted_heldout_loss


def test_little_text_is_read_256_times_at_most_and_by_no_large_model():
    plan = choose(request(300.0, SMALL_TEXT), Compiler())
    assert plan.chosen.epochs == pytest.approx(256, rel=1e-3)
    assert plan.chosen.size == "8 x 512" and plan.dollars < 30
    assert plan.dollars == pytest.approx(
        sum(phase.dollars for phase in plan.phases) + plan.reserve_dollars
    )
    assert "the learning rate is the config's, of 12 x 768" in plan.notes[2]
    left_out = [note.partition(" is left out")[0] for note in plan.notes[:2]]
    assert left_out == ["12 x 768", "24 x 1024"]
    assert dict(budget_report.format_choice(plan))["left"].startswith("$2")


def test_a_size_that_does_not_fit_is_left_out():
    plan = choose(request(2000), Compiler(too_large=(1024,)))
    assert plan.chosen.size == "12 x 768"
    assert plan.notes == ["24 x 1024 does not fit: a chip needs 40.00 GiB and has 16.00"]
    widths = {shape.width for shape in FAMILY}
    with pytest.raises(ValueError, match=r"no size fits v5e:2x2: .*2 x 128 does not fit"):
        choose(request(2000), Compiler(too_large=widths))


class OfAKernel(Compiler):
    """Gives programs that call a kernel without a price too."""

    def compile(self, config, index):
        made = super().compile(config, index)
        call = '  %k.1 = f32[8]{0} custom-call(%f), custom_call_target="tpu_custom_call"\n}'
        return dataclasses.replace(made, text=made.text.replace("\n}", f"\n{call}"))


def test_a_kernel_without_a_price_is_named():
    (note,) = choose(request(), OfAKernel()).notes
    assert "a kernel of 12 x 768 has no price" in note


def test_a_ladder_of_ones_own_decides_and_one_of_another_text_is_named():
    sizes, reads = (1e5, 4e5, 1.6e6), (4e6, 1.2e7, 3.6e7)
    points = [
        Point(size, tokens, 7e6, 1.0 + (1e5 / size) ** 0.3 + (4e6 / tokens) ** 0.3)
        for size in sizes
        for tokens in reads
    ]
    own = fit(points, "the store mine", "WordPiece")
    asked = dataclasses.replace(request(30.0, SMALL_TEXT), law=own)
    plan = choose(asked, Compiler())
    assert plan.predicted_heldout_loss < 1.6 and "fitted to 9 runs" in plan.law_in_words
    assert not any("trained on" in note for note in plan.notes)
    assert any("had their rates by transfer" in note for note in plan.notes)
    other = choose(dataclasses.replace(asked, corpus=LARGE_TEXT), Compiler())
    assert any("trained on the store mine, 7M tokens, and this" in note for note in other.notes)


def test_the_settings_are_a_run_that_can_be_trained():
    config = with_setting(CONFIG, "optim.learning_rate", 2e-4)
    config = with_setting(config, "phases[1].restart_learning_rate", 1e-4)
    config = with_setting(config, "phases[1].restart_warmup_steps", 7)
    plan = choose(request(config=config), Compiler())
    trained = config
    for flag, value in plan.settings.items():
        trained = with_setting(trained, flag.removeprefix("config."), value)
    validate.check(trained)
    assert [phase.steps for phase in trained.phases] == plan.chosen.steps
    scale = sum(plan.chosen.steps) / 1000
    assert trained.optim.warmup_steps == pytest.approx(50 * scale, abs=1)
    second = plan.chosen.steps[1] / 100
    assert trained.phases[1].restart_warmup_steps == pytest.approx(7 * second, abs=1)
    model = trained.model
    assert model.num_attention_heads * 64 == model.hidden_size
    assert model.intermediate_size == 4 * model.hidden_size
    assert EncoderShape(model.num_hidden_layers, model.hidden_size).name == plan.chosen.size
    # Saves are minutes apart.
    secs = trained.checkpoint.every_steps * sum(phase.secs for phase in plan.phases)
    assert secs / sum(plan.chosen.steps) == pytest.approx(budget.SAVE_EVERY_SECS, rel=0.01)


def test_a_short_run_still_warms_up():
    asked = request(config=with_setting(CONFIG, "optim.warmup_steps", 1))
    bills = choose(asked, Compiler()).phases
    settings = budget.make_settings(asked.config, [90, 10], bills, asked)
    assert settings["config.optim.warmup_steps"] == 1


@pytest.mark.parametrize(
    ("steps", "warmups"), [([90, 10], [5, 7]), ([1, 2], [0, 1]), ([12, 1], [1, 0])]
)
def test_a_warm_up_is_shorter_than_its_schedule(steps, warmups):
    config = with_setting(CONFIG, "phases[1].restart_learning_rate", 1e-4)
    config = with_setting(config, "phases[1].restart_warmup_steps", 70)
    asked = request(config=config)
    settings = budget.make_settings(config, steps, choose(asked, Compiler()).phases, asked)
    for flag, value in settings.items():
        config = with_setting(config, flag.removeprefix("config."), value)
    validate.check(config)
    assert [config.optim.warmup_steps, config.phases[1].restart_warmup_steps] == warmups


@pytest.mark.parametrize(
    ("usd", "corpus", "words"),
    [
        (0.3, LARGE_TEXT, "pays for 225 s of v5e:2x2, but a start alone takes about 300 s"),
        (0.5, HUGE_TEXT, r"buys 0.0\d+ epochs of the store's 2,000,000,000,000 tokens at the"),
        (300, TINY_TEXT, "20 tokens, read 256 times, are fewer than a step of each phase takes"),
    ],
)
def test_a_budget_that_buys_too_little_is_refused_before_anything_is_compiled(usd, corpus, words):
    compiler = Compiler()
    with pytest.raises(ValueError, match=words):
        choose(request(usd, corpus), compiler)
    assert compiler.calls == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective": "causal"}, "learns causal; set --config.objective=mlm"),
        ({"init": "hf:DIR"}, "config.init is hf:DIR"),
        ({"model": ModelConfig(share_layers=True)}, "config.model.share_layers is True"),
    ],
)
def test_a_run_that_the_law_does_not_describe_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        budget.check(config_lib.resolve(dataclasses.replace(CONFIG, phases=PHASES, **changes)))


def test_a_store_is_counted(tiny_store):
    config = Config(
        data=PretrainOptions(store=str(tiny_store)),
        phases=(Phase(16, 3, batch_size=8), Phase(32, 1, batch_size=8)),
    )
    store = open_store(tiny_store)
    source = StoreFeed([store], resolved(config))
    source.check()
    facts = budget.count_corpus(source)
    assert facts.unique_tokens == store.train.tokens
    for index, length in enumerate((16, 32)):
        rows = source.first_rows(index, 512)["input_ids"]
        # Padding is at the end; before it a masked token may have become [PAD].
        after = np.argmax(rows[:, ::-1] != store.special_ids["pad"], axis=1)
        real = length - after.mean()
        assert facts.tokens_per_row[index] == pytest.approx(real)
        assert length / 2 < real <= length


def test_screen_file_and_picture():
    plan = choose(request(is_spot=True), Compiler())
    choice = dict(budget_report.format_choice(plan))
    assert plan.chosen.size in choice["train"]
    assert "constants are ours" in plan.law_in_words
    assert f"{plan.predicted_heldout_loss:.2f} (" in choice["expect"]
    bill = "\n".join(text for _, text in budget_report.format_bill(plan))
    assert "here, read today, there" in bill
    assert "chips spot at $1.20" in bill
    assert len(budget_report.format_sizes(plan)) == len(plan.candidates) == 6
    assert [label for label, _ in budget_report.format_neighbors(plan)] == ["half", "twice"]
    numbers = json.loads(json.dumps(dataclasses.asdict(plan)))
    assert numbers["tokens"] == plan.tokens and numbers["law"]["constants"]["repeats"] > 0
    lines = budget_report.draw_figure(plan).axes[0].lines
    best, *sizes = [line for line in lines if len(line.get_xdata()) > 1]
    for usd, loss in zip(best.get_xdata(), best.get_ydata(), strict=True):
        at = [
            y
            for line in sizes
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
            if math.isclose(x, usd)
        ]
        assert loss == min(at)
