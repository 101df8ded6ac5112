"""Describe one or several runs in words and in one HTML page without links.

For several runs it also says which settings differ, and which losses by more than noise.
"""

import collections
import datetime
import statistics
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from bert_jax.logging.console import Rows, duration
from bert_jax.monitoring.run_state import RunState, get_object
from bert_jax.parallel.chips import find_chip
from bert_jax.runtime.goodput import TRAINING
from data_pipeline.vocab import describe_case

Sample = tuple[str, str]  # a sentence with a hidden word, and the guesses for it

_UNPRICED: Mapping[str, float] = types.MappingProxyType({})
# Settings that name places or seeds, which are not listed as differences of runs.
_SEEDS = ("seed", "data.random_seed")
_NO_SETTINGS = ("data.store", "data.data_cache", "data.dir", *_SEEDS)
_MAX_SETTINGS = 20
_INCHES = (3.9, 2.4)  # a picture's size, whose words stay readable across a phone
_APART = 0.08  # share of a picture's height that separates two values


def describe_verdict(run: RunState) -> str:
    """Describe a run's progress and quality in a sentence."""
    step, total = run.curves.last_step, f" of {run.steps:,}" if run.steps else ""
    words = [f"{run.folder.name}: {run.state} at step {step:,}{total}"]
    heldout = run.curves.list_newest("heldout")
    for term in run.list_heldout_terms():
        loss = heldout[f"{term}_loss"]
        words.append(f"held-out {term} loss {loss:.3f}{_locate(loss, run.reference_lines(term))}")
    count = len(run.findings)
    words.append(f"{count} finding{'s' * (count != 1)}" if count else "no findings")
    return "; ".join(words) + "."


def _locate(loss: float, lines: Mapping[str, float]) -> str:
    """Name the reference lines around a loss: the lowest above it, the highest not above it."""
    words = ""
    for name, value in sorted(lines.items(), key=lambda line: -line[1]):
        if name == "ln V":
            continue
        if loss >= value:
            is_unlearned = name == "unigram"
            more = " (no better than word frequencies)" * is_unlearned
            return f"{words}, {loss - value:.3f} above {name}{more}"
        words = f", {value - loss:.3f} below {name}"
    return words


def list_facts(run: RunState, usd_per_chip_hour: Mapping[str, float] = _UNPRICED) -> Rows:
    """List speed, cost, bad steps, data and code, as far as the run's files record them."""
    facts: Rows = []
    train = run.curves.list_newest("train")
    speed = run.summary.get("sequences_per_sec") or train.get("sequences_per_sec")
    if isinstance(speed, float):
        facts.append(("sequences per second", f"{speed:,.0f}"))
    spent = sum(run.secs.values())
    if spent:
        parts = sorted(((secs, kind) for kind, secs in run.secs.items() if secs >= 0.005 * spent))
        shares = (f"{kind.replace('_', ' ')} {secs / spent:.0%}" for secs, kind in reversed(parts))
        facts.append(("goodput", f"{run.secs[TRAINING] / spent:.1%}"))
        facts.append(("wall time", f"{duration(spent)}: {', '.join(shares)}"))
    facts += _list_spent(run, usd_per_chip_hour)
    facts.append(("bad steps", f"{run.bad_steps:,}"))
    return facts + _list_scores(run) + _list_data(run) + _list_record(run)


def _list_spent(run: RunState, usd_per_chip_hour: Mapping[str, float]) -> Rows:
    """List tokens, device hours, and dollars if the chip has a price; stops cost nothing.

    A branch lists only its own cost.
    """
    facts = []
    trunk, first_step = run.trunk
    if trunk:
        facts.append(
            ("branch", f"from step {first_step:,} of {trunk}, which bore the cost up to there")
        )
    tokens, positions = _count_tokens(run, first_step), _count_positions(run, first_step)
    if tokens:
        facts.append(("tokens", f"{tokens:,.0f}"))
    elif positions:
        facts.append(("positions", f"{positions:,}, padding included"))
    hours = _count_device_hours(run)
    if hours:
        facts.append(("device hours", f"{hours:,.2f} ({run.devices})"))
        chip = find_chip(run.devices.partition(" x ")[2])
        usd = usd_per_chip_hour.get(chip.name) if chip else None
        if chip and usd is not None:
            dollars = hours / chip.devices_per_chip * usd
            facts.append(("dollars", f"{dollars:,.2f} at {usd:g} per {chip.name} hour"))
    return facts


def _count_device_hours(run: RunState) -> float:
    """Return the hours of a run, without its stops, times its number of devices."""
    secs = sum(run.secs.values()) - run.secs.get("stopped", 0.0)
    count = run.devices.partition(" ")[0]
    return int(count) * secs / 3600 if count.isdecimal() else 0.0


def draw_tree(runs: Sequence[RunState]) -> list[str]:
    """Draw branches below their trunks, with each cost and the sum; [] without a branch.

    The sum is compared with the cost of separate runs, which would repeat the steps of trunks. The
    cost is in tokens once all runs have finished, in positions before.
    """
    if not any(run.trunk[0] for run in runs):
        return []
    lines: list[str] = []
    folders = {str(run.folder.resolve()): run for run in runs}
    has_tokens = all(_count_tokens(run, 0) for run in runs)
    count: Callable[[RunState, int], float] = _count_tokens if has_tokens else _count_positions
    unit = "tokens" if has_tokens else "positions"

    def draw(run: RunState, depth: int) -> None:
        trunk, step = run.trunk
        origin = f" from step {step:,}" if trunk else ""
        if trunk and trunk not in folders:
            origin += f" of {trunk}"
        own = f"{count(run, step):,.0f} {unit}, {_count_device_hours(run):,.2f} device hours"
        lines.append(f"{'   ' * depth}{run.folder.name}{origin}: {own}")
        for leaf in sorted(runs, key=lambda leaf: leaf.trunk[1]):
            if folders.get(leaf.trunk[0]) is run and leaf is not run:
                draw(leaf, depth + 1)

    for run in runs:
        if run.trunk[0] not in folders:
            draw(run, 0)
    paid = sum(count(run, run.trunk[1]) for run in runs)
    alone = sum(count(run, 0) for run in runs)
    hours = sum(map(_count_device_hours, runs))
    words = f"{paid:,.0f} {unit}, {hours:,.2f} device hours"
    return [*lines, f"together: {words}; unbranched, the runs read {alone:,.0f} {unit}"]


def _count_tokens(run: RunState, first_step: int) -> float:
    """Return the tokens without padding that a finished run read after a step; 0 if unknown."""
    phases = run.summary.get("phases")
    total, skipped = 0.0, first_step
    for index, phase in enumerate(phases if isinstance(phases, list) else []):
        steps = run.settings.get(f"phases[{index}].steps")
        tokens = phase.get("tokens_per_step") if isinstance(phase, dict) else None
        if type(steps) is not int or not isinstance(tokens, float):
            return 0.0
        total += max(0, steps - skipped) * tokens
        skipped = max(0, skipped - steps)
    return total


def _count_positions(run: RunState, first_step: int) -> int:
    """Return rows times their length from a step to the last logged one, 0 if unknown."""
    left, total, index, skipped = run.curves.last_step, 0, 0, first_step
    while left > 0:
        steps, rows, seq_len = (
            run.settings.get(f"phases[{index}].{name}")
            for name in ("steps", "batch_size", "seq_len")
        )
        if type(steps) is not int or type(rows) is not int or type(seq_len) is not int:
            return 0
        total += max(0, min(steps, left) - skipped) * rows * seq_len
        left, index, skipped = left - steps, index + 1, max(0, skipped - steps)
    return total


def _list_data(run: RunState) -> Rows:
    """List the facts about the text in the manifest of the run's store."""
    facts = []
    for name, split in run.manifest.get("splits", {}).items():
        counts = (f"{split[key]:,} {key}" for key in ("documents", "sentences", "tokens"))
        facts.append((f"{name.replace('heldout', 'held-out')} split", ", ".join(counts)))
    if vocabulary := run.manifest.get("vocabulary"):
        kind, case = vocabulary["kind"], describe_case(vocabulary)
        facts.append(("vocabulary", f"{kind}, {vocabulary['size']:,} entries, {case}"))
    if paths := [source["path"] for source in run.manifest.get("sources", [])]:
        more = f" and {len(paths) - 3:,} more" * (len(paths) > 3)
        facts.append(("sources", ", ".join(paths[:3]) + more))
    if run.store:
        facts.append(("store", f"{run.settings.get('data.store', '')} (digest {run.store})"))
    return facts


def _list_record(run: RunState) -> Rows:
    """List when the run began, on which devices, and by which code."""
    facts = []
    if 0 < run.began < 1e11:  # unknown, or no date of this age
        began = datetime.datetime.fromtimestamp(run.began, datetime.UTC)
        facts.append(("began", f"{began:%Y-%m-%d %H:%M} UTC"))
    if run.devices:
        processes = run.record.get("processes")
        more = f", {processes} processes" * (type(processes) is int and processes > 1)
        facts.append(("devices", run.devices + more))
    code = get_object(run.record, "code")
    if code:
        commit = str(code.get("commit") or "")[:12]
        source = f"commit {commit}" if commit else f"digest {code.get('source_digest', '')}"
        facts.append(("code", f"bert_jax {code.get('bert_jax', '')}, {source}"))
        versions = {"python": code.get("python"), **get_object(code, "packages")}
        names = [name for name in ("python", "jax", "flax", "optax") if versions.get(name)]
        facts.append(("versions", ", ".join(f"{name} {versions[name]}" for name in names)))
    changes = run.record.get("changes")
    if isinstance(changes, list) and changes:
        facts.append(("changed settings", f"{len(changes):,} since the first start"))
    return facts


def _list_scores(run: RunState) -> Rows:
    """List the last scores on a task's development sets, and of the probe in RUN-probe."""
    scores: dict[str, Iterable[tuple[int, float]]] = {
        measure: zip(*run.curves.select(split, measure), strict=True)
        for split, measure in run.curves.points
        if split == "heldout" and measure.startswith("dev") and not measure.endswith("_loss")
    }
    scores["probe"] = [
        (each["step"], each["score"])
        for each in run.probe
        if isinstance(each.get("score"), float) and type(each.get("step")) is int
    ]
    return [
        (name, ", ".join(f"{score:.4f} at step {step:,.0f}" for step, score in [*pairs][-5:]))
        for name, pairs in scores.items()
        if pairs
    ]


def compare_settings(runs: Sequence[RunState]) -> dict[str, list[Any]]:
    """Return the settings that differ between runs: key -> value per run, None if it has none.

    Seeds and paths are left out.
    """
    tables = [run.settings for run in runs]
    values = {key: [table.get(key) for table in tables] for table in tables for key in table}
    return {
        key: listed
        for key, listed in values.items()
        if key not in _NO_SETTINGS and any(value != listed[0] for value in listed)
    }


def describe_settings(runs: Sequence[RunState]) -> list[str]:
    """Describe each differing setting, and its runs, in a sentence."""
    sentences = []
    differing = compare_settings(runs)
    for key, values in list(differing.items())[:_MAX_SETTINGS]:
        names: dict[str, list[str]] = collections.defaultdict(list)
        for run, value in zip(runs, values, strict=True):
            names["unset" if value is None else str(value) or "empty"].append(run.folder.name)
        parts = (f"{value} in {', '.join(members)}" for value, members in names.items())
        sentences.append(f"{key}: {'; '.join(parts)}.")
    if len(differing) > _MAX_SETTINGS:
        sentences.append(f"{len(differing) - _MAX_SETTINGS:,} more settings differ.")
    return sentences or ["No setting differs, except seeds and places."]


def compare(runs: Sequence[RunState]) -> list[str]:
    """Describe how held-out losses of runs differ, and whether by more than noise.

    Runs whose settings differ only in seeds form a group. The noise is the standard deviation
    within groups, pooled; each later group is compared with the first by Student's t. Losses are
    compared term by term, only between runs of the same store. A run with the settings, seeds and
    losses of another, such as a copy or a link, says nothing about noise and is left out.
    """
    if len({run.store for run in runs}) > 1:
        return ["Their stores differ, so their losses cannot be compared."]
    differing = compare_settings(runs)
    groups: dict[tuple[str, ...], list[RunState]] = collections.defaultdict(list)
    sentences = []
    for index, run in enumerate(runs):
        if not run.steps or run.curves.last_step < run.steps:
            sentences.append(f"Not compared: {run.folder.name} has not finished.")
        elif not run.list_heldout_terms():
            sentences.append(f"{run.folder.name} has no held-out loss to compare.")
        else:
            members = groups[tuple(str(values[index]) for values in differing.values())]
            if twin := next((each for each in members if _are_alike(each, run)), None):
                words = f"has settings, seeds and losses of {twin.folder.name}: the same run again"
                sentences.append(f"Not compared: {run.folder.name} {words}.")
            else:
                members.append(run)
    if len(groups) > 1:
        ends = (".seq_len", ".masked_lm_prob")  # no other setting but data.* changes the examples
        if others := [key for key in differing if key.startswith("data.") or key.endswith(ends)]:
            sentences.append(
                f"Held-out examples may differ too, by {', '.join(others)}: compare such losses "
                "with care."
            )
        if all(len(members) == 1 for members in groups.values()):
            sentences.append(
                "Each setting has one run, so the noise is not known; add runs with other seeds."
            )
    terms = [run.list_heldout_terms() for members in groups.values() for run in members]
    shared = [term for term in terms[0] if all(term in each for each in terms)] if terms else []
    if terms and not shared:
        sentences.append("Their objectives share no term, so their losses cannot be compared.")
    for term in shared:
        sentences += _compare_term(list(groups.values()), term)
    return sentences


def _are_alike(first: RunState, second: RunState) -> bool:
    """Return whether the seeds and the last held-out scores of two runs are equal."""
    is_same = all(first.settings.get(key) == second.settings.get(key) for key in _SEEDS)
    return is_same and first.curves.list_newest("heldout") == second.curves.list_newest("heldout")


def _compare_term(groups: Sequence[Sequence[RunState]], term: str) -> list[str]:
    from bert_jax.logging.statistics import compare_unpaired  # scipy, which takes a second

    measure = f"{term}_loss"
    table = [[run.curves.list_newest("heldout")[measure] for run in members] for members in groups]
    sentences = []
    for members, losses in zip(groups, table, strict=True):
        count = f"{len(losses)} run{'s' * (len(losses) > 1)}"
        mean = statistics.fmean(losses)
        sentences.append(f"{members[0].folder.name}: held-out {term} loss {mean:.4f}, {count}.")
    for members, losses in list(zip(groups, table, strict=True))[1:]:
        gap = statistics.fmean(losses) - statistics.fmean(table[0])
        names = f"{members[0].folder.name} - {groups[0][0].folder.name}"
        interval = compare_unpaired(losses, table[0], table)
        if interval is None:
            sentences.append(f"{names}: {gap:+.4f} {term} loss, noise unknown.")
            continue
        verdict = "more than" if interval.is_beyond_chance else "within"
        sentences.append(f"{names}: {interval.describe(4)} {term} loss, {verdict} the noise.")
    return sentences


def render_page(
    runs: Sequence[RunState],
    usd_per_chip_hour: Mapping[str, float] = _UNPRICED,
    samples: Sequence[Sequence[Sample]] = (),
) -> str:
    """Render the page; text that was read from files is escaped.

    `samples` has the guesses of each run, if there are any.
    """
    from data_pipeline.report import page  # matplotlib, which the terminal does not wait for

    title = escape(f"Run {runs[0].folder.name}" if len(runs) == 1 else f"{len(runs)} runs")
    sections = [f"<h1>{title}</h1>", _render_verdicts(runs)]
    terms = dict.fromkeys(term for run in runs for term in run.list_terms())
    if terms:
        words = "Thin lines are training losses, thick lines held-out ones with the last value."
        plots = page.render_plots({f"{term} loss (nats)": _draw(runs, term) for term in terms})
        sections.append(page.render_section("Curves", f'<p class="quiet">{words}</p><br>{plots}'))
    if len(runs) > 1:
        tree = "\n".join(map(escape, draw_tree(runs)))
        if tree:
            sections.append(page.render_section("Branches", f"<pre>{tree}</pre>"))
        for heading, sentences in (
            ("Which settings differ", describe_settings(runs)),
            ("Which losses differ", compare(runs)),
        ):
            lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
            sections.append(page.render_section(heading, f"<ul>{lines}</ul>"))
    for run, guessed in zip(runs, samples or [()] * len(runs), strict=True):
        facts = [*list_facts(run, usd_per_chip_hour), ("folder", str(run.folder))]
        missing = "".join(f'<p class="quiet">{escape(sentence)}</p>' for sentence in run.missing)
        content = page.render_facts(facts) + missing + _render_samples(guessed)
        sections.append(page.render_section(run.folder.name, content))
    return page.render_document(title, sections)


def _render_verdicts(runs: Sequence[RunState]) -> str:
    """Render each run's verdict and findings, with its number and color if there are several."""
    from data_pipeline.report import page

    items = []
    for number, run in enumerate(runs):
        sentences = [f"{each.get('sentence', '')} {each.get('try', '')}" for each in run.findings]
        findings = page.render_findings(sentences) if sentences else ""
        verdict = escape(describe_verdict(run))
        if len(runs) == 1:
            return f"<p>{verdict}</p>{findings}"
        look = f"--run: var(--run{number % len(page.RUN_COLORS) + 1})"
        items.append(f'<li style="{look}">{verdict}{findings}</li>')
    return f'<ol class="runs">{"".join(items)}</ol>'


def _render_samples(samples: Sequence[Sample]) -> str:
    if not samples:
        return ""
    look = 'class="quiet" style="white-space: pre-wrap"'  # spaces separate the guesses
    items = "".join(
        f'<li dir="auto">{escape(text)}<br><span {look}>{escape(guesses.strip())}</span></li>'
        for text, guesses in samples
    )
    return f"<h3>Guesses for a hidden word of held-out sentences</h3><ul>{items}</ul>"


def _draw(runs: Sequence[RunState], term: str) -> str:
    """Draw the loss of a term: training thin, held-out thick, and the reference lines.

    A run has a number and a color; both are drawn with its last value, next to the curves.
    """
    from matplotlib import style

    from bert_jax.logging import plots
    from data_pipeline.report import page

    measure = f"{term}_loss"
    with style.context(["default", page.LOOK]):
        figure, axes = page.new_axes(_INCHES)
        axes.margins(y=0.08)  # a reference line at the top has its words above it
        end = max(1, *(run.curves.last_step for run in runs))
        ends = []
        for number, run in enumerate(runs):
            color = page.RUN_COLORS[number % len(page.RUN_COLORS)]
            train, heldout = (run.curves.select(split, measure) for split in ("train", "heldout"))
            axes.plot(*train, color=color, linewidth=0.7, alpha=0.6, clip_on=False)
            axes.plot(*heldout, color=color, linewidth=1.6, clip_on=False)
            # A marker of matplotlib is a reference to an id; a line without length is not.
            dots = heldout if len(heldout[0]) <= plots.MAX_DOTS else ((), ())
            for step, loss in zip(*dots, strict=True):
                look: dict[str, Any] = {"linewidth": 3.5, "solid_capstyle": "round"}
                axes.plot([step, step], [loss, loss], color=color, clip_on=False, **look)
            if len(heldout[0]):
                name = f"{number + 1}:  " * (len(runs) > 1)
                ends.append(plots.End(heldout[1][-1], f"{name}{heldout[1][-1]:.3f}", color))
        is_one_store = len({run.store for run in runs}) == 1
        for word, value in runs[0].reference_lines(term).items() if is_one_store else ():
            axes.plot([0, end], [value] * 2, color=page.QUIET, linewidth=0.8, clip_on=False)
            look = {"horizontalalignment": "right", "textcoords": "offset points"}
            axes.annotate(word, (end, value), (-1, 2), **look)
        axes.set_xlim(0, end)
        plots.write_ends(axes, ends, _APART)
        axes.set_xlabel("step")
        return page.render_svg(figure, f"{term} loss by step", {})
