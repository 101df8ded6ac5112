"""Describe the choice for a budget: rows for the screen, and a plot of loss against dollars."""

import itertools

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bert_jax.logging import plots
from bert_jax.logging.console import Rows, duration
from bert_jax.planning.budget import BudgetPlan, Purchase
from bert_jax.planning.chip_prices import format_dollars
from bert_jax.planning.law import count_in_words
from bert_jax.trainer.heldout import MANY_EPOCHS

# Okabe and Ito's colors, apart for color-blind eyes, from the smallest shape to the largest.
_COLORS = ("#999999", "#56B4E9", "#009E73", "#0072B2", "#E69F00", "#CC79A7")
_BILL_WIDTH = 40
_MAX_OF_BEST = 1.6  # times the highest loss of the best size: how high the picture reaches


def format_choice(plan: BudgetPlan) -> Rows:
    """Describe the chosen run in a few lines."""
    chosen, settings = plan.chosen, plan.settings
    warmup = ""
    if "config.optim.warmup_steps" in settings:
        warmup = f", warm-up {settings['config.optim.warmup_steps']:,} steps"
    rows = [
        (
            "train",
            f"{chosen.size}, {count_in_words(chosen.layer_parameters)} parameters in its layers",
        ),
        (
            "read",
            f"{count_in_words(chosen.tokens)} tokens in {sum(chosen.steps):,} steps: "
            f"{chosen.epochs:,.1f} epochs of the store's {count_in_words(plan.unique_tokens)}",
        ),
        ("expect", f"held-out MLM loss {_format_loss(chosen)}, the interval with 90%"),
        ("", plan.law_in_words),
        ("rate", f"{plan.learning_rate:.2e}{warmup}"),
    ]
    if chosen.dollars < 0.98 * plan.budget_dollars:
        left = format_dollars(plan.budget_dollars - chosen.dollars)
        words = (
            f"{left} are left: reading text more than {MANY_EPOCHS} times is known to cost quality"
        )
        rows.append(("left", f"{words}; more text would bring more"))
    elif plan.enough_dollars < 0.75 * chosen.budget_dollars:
        words = f"{format_dollars(plan.enough_dollars)} is predicted to come within 0.01 of that"
        rows.append(("enough", f"{words}: more text would bring more than more money"))
    return rows + [("note", note) for note in plan.notes]


def format_bill(plan: BudgetPlan) -> Rows:
    """Describe how the dollars are spent."""
    rows = []
    for index, phase in enumerate(plan.phases):
        words = f"{phase.steps:,} steps of {phase.rows_per_step:,} rows of {phase.seq_len}"
        pace = f"{1e3 * phase.step_secs:,.1f} ms per step, {phase.peak_share:.0%} of peak"
        origin = "compiler estimate" if phase.speed == "compiled" else f"by {phase.speed}"
        cost = f"{format_dollars(phase.dollars):>10}  {duration(phase.secs):>10}"
        rows.append((f"phase {index}", f"{words:{_BILL_WIDTH}} {cost}"))
        rows.append(("", f"  {pace} ({origin})"))
    words = "start, evaluations, saves"
    rows.append(("", f"{words:{_BILL_WIDTH}} {format_dollars(plan.reserve_dollars):>10}"))
    kind = "spot" if plan.is_spot else "on demand"
    words = f"in all, {plan.chips:,} chips {kind} at {format_dollars(plan.usd_per_chip_hour)}"
    days = f"{duration(86_400 * plan.days):>10}"
    rows.append(("", f"{words:{_BILL_WIDTH}} {format_dollars(plan.dollars):>10}  {days}"))
    parts = [plan.price_region, plan.price_read and f"read {plan.price_read}", plan.price_source]
    return [*rows, ("prices", ", ".join(part for part in parts if part))]


def format_sizes(plan: BudgetPlan) -> Rows:
    """Describe the run of each size for the same budget, the best first."""
    return [(each.size, f"{_describe_purchase(each)}, {each.speed}") for each in plan.candidates]


def format_neighbors(plan: BudgetPlan) -> Rows:
    """Describe the runs for half and twice the budget."""
    rows = []
    for label, purchase in (("half", plan.half), ("twice", plan.twice)):
        words = "too little of the text to predict anything"
        if purchase:
            money = format_dollars(purchase.budget_dollars)
            if purchase.dollars < 0.98 * purchase.budget_dollars:
                money += f" ({format_dollars(purchase.dollars)} are spent)"
            words = f"{money}: {purchase.size}, {_describe_purchase(purchase)}"
        rows.append((label, words))
    return rows


def _describe_purchase(purchase: Purchase) -> str:
    return (
        f"{count_in_words(purchase.tokens):>5} tokens, {purchase.epochs:>5,.3g} epochs, loss "
        f"{_format_loss(purchase)}"
    )


def _format_loss(purchase: Purchase) -> str:
    low, high = purchase.interval
    return f"{purchase.predicted_heldout_loss:.2f} ({low:.2f} to {high:.2f})"


def draw_figure(plan: BudgetPlan) -> Figure:
    """Plot the predicted loss of each size against dollars, and the chosen run."""
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    of_all = itertools.chain.from_iterable(plan.curves.values())
    falling = sorted(of_all, key=lambda point: point[1], reverse=True)
    lowest = {point[0]: point for point in falling}  # the last at each price is the lowest
    usd, best, low, high = zip(*sorted(lowest.values()), strict=True)
    axes.fill_between(usd, low, high, color=plots.HELDOUT, alpha=0.1, linewidth=0)
    axes.plot(usd, best, color=plots.HELDOUT, linewidth=7, alpha=0.3, label="best size")
    highest = max(max(best), min(max(high), _MAX_OF_BEST * max(best)))
    for (size, points), color in zip(plan.curves.items(), _COLORS, strict=False):
        usd, losses, *_ = zip(*points, strict=True)
        is_above = min(losses) > highest
        label = f"{size} (above)" if is_above else size
        axes.plot(usd, losses, color=color, linewidth=1.5, label=label)
    for label, purchase in (("half", plan.half), ("this", plan.chosen), ("twice", plan.twice)):
        if purchase is not None:
            place = purchase.budget_dollars, purchase.predicted_heldout_loss
            axes.plot(*place, "o", color=plots.HELDOUT, markersize=6, zorder=5)
            words = f"{label}: {place[1]:.2f}\n{purchase.size}"
            axes.annotate(
                *(words, place, (0, -8)),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=8,
            )
    axes.set_ylim(min(low) - 0.05 * (highest - min(low)), highest)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"${value:,.4g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"budget on {plan.topology}", color=plots.GRAY)
    axes.set_title("Predicted held-out masked LM loss (nats), 90% interval of the best", loc="left")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure
