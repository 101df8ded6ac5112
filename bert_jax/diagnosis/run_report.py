"""Put a run, or several, into words and one HTML page without links."""

import collections
import math
import statistics
from collections.abc import Sequence
from html import escape
from typing import Any

from bert_jax.diagnosis.run_state import RunState, differing_settings
from bert_jax.reporting.console import duration
from bert_jax.runtime.goodput import TRAINING

_STYLES = {"-": "solid", "--": "dashed", "-.": "dash-dot", ":": "dotted"}


def describe_verdict(run: RunState) -> str:
    """Say in a sentence how far a run is and how good."""
    step, state = run.curves.last_step, "finished" if run.summary else "not finished"
    total = f" of {run.steps:,}" if run.steps else ""
    words = [f"{run.folder.name}: {state} at step {step:,}{total}"]
    for term in run.list_terms():
        loss = run.curves.last("heldout", f"{term}_loss")
        if loss is None:
            continue
        words.append(f"held-out {term} loss {loss:.3f}")
        lines = {word: value for word, value in run.reference_lines(term).items() if word != "ln V"}
        if lines:
            word, value = min(lines.items(), key=lambda line: line[1])
            side = "below" if loss < value else "above"
            words[-1] += f", {abs(value - loss):.3f} {side} {word}"
    count = len(run.findings)
    words.append(f"{count} finding{'s' * (count != 1)}" if count else "no findings")
    return "; ".join(words) + "."


def list_facts(run: RunState) -> list[tuple[str, str]]:
    """List speed, goodput, bad steps and what was spent; what is unknown is left out."""
    facts = []
    speed = run.summary.get("sequences_per_sec") or run.curves.last("train", "sequences_per_sec")
    if isinstance(speed, float):
        facts.append(("sequences a second", f"{speed:,.0f}"))
    spent = sum(run.secs.values())
    if spent:
        parts = sorted(((secs, kind) for kind, secs in run.secs.items() if secs >= 0.005 * spent))
        shares = (f"{kind.replace('_', ' ')} {secs / spent:.0%}" for secs, kind in reversed(parts))
        facts.append(("goodput", f"{run.secs[TRAINING] / spent:.1%}"))
        facts.append(("wall time", f"{duration(spent)}: {', '.join(shares)}"))
        if run.device_count:
            hours = run.device_count * (spent - run.secs["stopped"]) / 3600
            facts.append(("device hours", f"{hours:,.2f} ({run.devices})"))
    tokens = _count_tokens(run)
    if tokens:
        facts.append(("tokens", f"{tokens:,.0f}"))
    facts.append(("bad steps", f"{run.bad_steps:,}"))
    if run.store:
        facts.append(("store", f"digest {run.store}"))
    return facts


def _count_tokens(run: RunState) -> float:
    """Return the tokens that a finished run has read, 0 if unknown: padding is not counted."""
    phases = run.summary.get("phases")
    total = 0.0
    for index, phase in enumerate(phases if isinstance(phases, list) else []):
        steps = run.settings.get(f"phases[{index}].steps")
        tokens = phase.get("tokens_per_step") if isinstance(phase, dict) else None
        if type(steps) is not int or not isinstance(tokens, float):
            return 0.0
        total += steps * tokens
    return total


def compare(runs: Sequence[RunState]) -> list[str]:
    """Say how runs differ: settings, held-out loss, and whether that is more than noise.

    Runs whose settings differ in seeds only are of one group. The noise is the standard deviation
    within groups, pooled; two groups differ by more than it if their means are further apart than
    two standard errors. Losses are compared on one store only.
    """
    sentences = []
    keys = differing_settings(runs)
    for key in keys[:20]:
        values = ", ".join(f"{run.folder.name} {run.settings.get(key, 'unset')}" for run in runs)
        sentences.append(f"{key}: {values}.")
    if not keys:
        sentences.append("No setting differs beside seeds and places.")
    if len({run.store for run in runs}) > 1:
        return [*sentences, "Their stores differ, so their losses cannot be compared."]
    if len({run.settings.get("objective") for run in runs}) > 1:
        return [*sentences, "Their objectives differ, so their losses cannot be compared."]
    groups: dict[tuple[str, ...], list[float]] = collections.defaultdict(list)
    names: dict[tuple[str, ...], str] = {}
    for run in runs:
        loss = run.heldout_loss()
        if loss is None:
            sentences.append(f"{run.folder.name} has no held-out loss to compare.")
            continue
        if run.curves.last_step < run.steps:
            sentences.append(f"{run.folder.name} is not at its end, where losses are compared.")
            continue
        group = tuple(str(run.settings.get(key)) for key in keys)
        groups[group].append(loss)
        names.setdefault(group, run.folder.name)
    for group, losses in groups.items():
        count = f"{len(losses)} run{'s' * (len(losses) > 1)}"
        sentences.append(f"{names[group]}: held-out loss {statistics.fmean(losses):.4f}, {count}.")
    degrees = sum(len(losses) - 1 for losses in groups.values())
    if len(groups) > 1 and not degrees:
        sentences.append(
            "Each setting has one run, so the noise is not known; add runs with other seeds."
        )
    elif len(groups) > 1:
        squares = sum(statistics.pvariance(losses) * len(losses) for losses in groups.values())
        noise = math.sqrt(squares / degrees)
        sentences.append(f"Noise between seeds: {noise:.4f}, the pooled standard deviation.")
        (base, first), *others = groups.items()
        for group, losses in others:
            gap = statistics.fmean(losses) - statistics.fmean(first)
            limit = 2 * noise * math.sqrt(1 / len(first) + 1 / len(losses))
            verdict = "more than" if abs(gap) > limit else "within"
            sentences.append(f"{names[group]} - {names[base]}: {gap:+.4f}, {verdict} the noise.")
    return sentences


def render_page(runs: Sequence[RunState]) -> str:
    """Render the page; text that was read from files is escaped."""
    from data_pipeline.report import page  # matplotlib, which the terminal does not wait for

    title = escape(f"Run {runs[0].folder.name}" if len(runs) == 1 else f"{len(runs)} runs")
    sections = [f"<h1>{title}</h1>"]
    pictures = []
    for term in dict.fromkeys(term for run in runs for term in run.list_terms()):
        pictures.append(f"<div><h3>{escape(term)} loss (nats)</h3>{_draw(runs, term)}</div>")
    for run in runs:
        html = f"<p>{escape(describe_verdict(run))}</p>" + "".join(
            f'<p class="quiet">{escape(sentence)}</p>' for sentence in run.missing
        )
        items = "".join(
            f"<li>{escape(str(each.get('sentence', '')))} {escape(str(each.get('try', '')))}</li>"
            for each in run.findings
        )
        html += f'<ul class="findings">{items}</ul>' if items else ""
        facts = "".join(
            f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in list_facts(run)
        )
        sections.append(page.section(str(run.folder), f"{html}<dl>{facts}</dl>"))
    if pictures:
        sections.insert(1, page.section("Curves", f'<div class="plots">{"".join(pictures)}</div>'))
    if len(runs) > 1:
        lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in compare(runs))
        sections.append(page.section("How they differ", f"<ul>{lines}</ul>"))
    return page.document(title, sections)


def _draw(runs: Sequence[RunState], term: str) -> str:
    """Draw the loss of a term: training thin, held-out with dots, and the reference lines."""
    from matplotlib import style

    from data_pipeline.report import page

    with style.context(["default", page.LOOK]):
        figure, axes = page.new_axes()
        end = max(run.curves.last_step for run in runs)
        for number, run in enumerate(runs):
            look: dict[str, Any] = {
                "linestyle": list(_STYLES)[number % len(_STYLES)],
                "clip_on": False,
            }
            train = run.curves.select("train", f"{term}_loss")
            axes.plot(*train, color=page.BAR, linewidth=0.8, **look)
            heldout = run.curves.select("heldout", f"{term}_loss")
            axes.plot(*heldout, color=page.MARK, linewidth=1.6, **look)
            if len(heldout[0]):
                name = f"{run.folder.name} ({_STYLES[look['linestyle']]}) " * (len(runs) > 1)
                axes.annotate(
                    f"{name}{heldout[1][-1]:.3f}",
                    (1, 0.9 - 0.08 * number),
                    xycoords="axes fraction",
                    horizontalalignment="right",
                    color=page.MARK,
                )
        for word, value in runs[0].reference_lines(term).items():
            axes.plot([0, end], [value] * 2, color=page.QUIET, linewidth=0.8, clip_on=False)
            axes.annotate(word, (0, value), (3, 2), textcoords="offset points")
        axes.set_xlim(0, max(end, 1))
        axes.set_title("blue: training, orange: held out")
        axes.set_xlabel("step")
        return page.render_svg(figure, f"{term} loss by step", {})
