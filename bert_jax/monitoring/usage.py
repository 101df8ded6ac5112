"""List what a run took, what it read and which code it ran, as far as its files say."""

import datetime
from collections.abc import Mapping
from typing import Any

from bert_jax.monitoring.run_state import RunState
from bert_jax.parallel.chips import find_chip

Facts = list[tuple[str, str]]


def list_spent(run: RunState, usd_per_chip_hour: Mapping[str, float]) -> Facts:
    """List tokens, device hours, and dollars if the chip has a price; a stop costs nothing."""
    facts = []
    tokens, positions = _count_tokens(run), _count_positions(run)
    if tokens:
        facts.append(("tokens", f"{tokens:,.0f}"))
    elif positions:
        facts.append(("positions", f"{positions:,}, padding included"))
    hours = run.device_count * sum(run.secs.values()) / 3600
    hours -= run.device_count * run.secs.get("stopped", 0.0) / 3600
    if hours:
        facts.append(("device hours", f"{hours:,.2f} ({run.devices})"))
        chip = find_chip(run.devices.partition(" x ")[2])
        usd = usd_per_chip_hour.get(chip.name) if chip else None
        if chip and usd is not None:
            dollars = hours / chip.devices_per_chip * usd
            facts.append(("dollars", f"{dollars:,.2f} at {usd:g} per {chip.name} and hour"))
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


def _count_positions(run: RunState) -> int:
    """Return rows times their length up to the last logged step, 0 if unknown."""
    left, total, index = run.curves.last_step, 0, 0
    while left > 0:
        steps, rows, seq_len = (
            run.settings.get(f"phases[{index}].{name}")
            for name in ("steps", "batch_size", "seq_len")
        )
        if type(steps) is not int or type(rows) is not int or type(seq_len) is not int:
            return 0
        total += min(steps, left) * rows * seq_len
        left, index = left - steps, index + 1
    return total


def list_data(run: RunState) -> Facts:
    """List what the run's store records of its text."""
    facts = []
    for name, split in _get_objects(run.manifest, "splits").items():
        if isinstance(split, dict):
            counts = (
                f"{split[key]:,} {key}"
                for key in ("documents", "sentences", "tokens")
                if type(split.get(key)) is int
            )
            facts.append((f"{name.replace('heldout', 'held-out')} split", ", ".join(counts)))
    vocabulary = _get_objects(run.manifest, "vocabulary")
    if type(vocabulary.get("size")) is int:
        case = "lower case" if vocabulary.get("lowercase") else "case kept"
        kind = vocabulary.get("kind", "wordpiece")
        facts.append(("vocabulary", f"{kind}, {vocabulary['size']:,} entries, {case}"))
    sources = run.manifest.get("sources")
    if isinstance(sources, list) and sources:
        paths = [str(each.get("path", "")) for each in sources if isinstance(each, dict)]
        more = f" and {len(paths) - 3:,} more" * (len(paths) > 3)
        facts.append(("sources", ", ".join(paths[:3]) + more))
    if run.store:
        facts.append(("store", f"{run.settings.get('data.store', '')} (digest {run.store})"))
    return facts


def list_record(run: RunState) -> Facts:
    """List when the run began, on which devices, and by which code."""
    facts = []
    if 0 < run.began < 1e11:  # a clock of this age
        began = datetime.datetime.fromtimestamp(run.began, datetime.UTC)
        facts.append(("began", f"{began:%Y-%m-%d %H:%M} UTC"))
    if run.devices:
        processes = run.record.get("processes")
        more = f", {processes} processes" * (type(processes) is int and processes > 1)
        facts.append(("devices", run.devices + more))
    code = _get_objects(run.record, "code")
    if code:
        commit = str(code.get("commit") or "")[:12]
        source = f"commit {commit}" if commit else f"digest {code.get('source_digest', '')}"
        facts.append(("code", f"bert_jax {code.get('bert_jax', '')}, {source}"))
        versions = {"python": code.get("python"), **_get_objects(code, "packages")}
        names = [name for name in ("python", "jax", "flax", "optax") if versions.get(name)]
        facts.append(("versions", ", ".join(f"{name} {versions[name]}" for name in names)))
    changes = run.record.get("changes")
    if isinstance(changes, list) and changes:
        facts.append(("changed settings", f"{len(changes):,} since the first start"))
    return facts


def list_probe(run: RunState) -> Facts:
    """List the scores of the probe in the folder RUN-probe, the last ones."""
    scores = [
        f"{each['score']:.4f} at step {each['step']:,}"
        for each in run.probe
        if isinstance(each.get("score"), float) and type(each.get("step")) is int
    ]
    return [("probe", ", ".join(scores[-5:]))] if scores else []


def _get_objects(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}
