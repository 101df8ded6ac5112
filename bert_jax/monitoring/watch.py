"""Apply the rules after each line of metrics; each rule reports once per run, restarts included."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax.config import Config, phase_of_step
from bert_jax.logging.metrics_writer import MetricsFile
from bert_jax.monitoring.rules import Finding, Line, PhaseView, diagnose
from data_pipeline.io.jsonl import FINDING

# Most lines per phase that rules read; beyond this, every second line of the first half is dropped.
_MAX_LINES = 1000


@dataclasses.dataclass
class Watch:
    """Keep the lines of the newest phase and all findings: a Listener after the metrics file."""

    config: Config
    baselines: Sequence[Mapping[str, float]]  # PhaseView.baseline of each phase
    per_step: Sequence[Mapping[str, float]]  # PhaseView.per_step of each phase
    data_findings: Sequence[Finding]  # known before the first step
    show: Callable[[str, str, str], None]  # the rule, its sentence and its advice
    file: MetricsFile  # gets each finding after the line that shows it
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._lines: dict[str, list[Line]] = {"train": [], "heldout": []}
        self._index = 0

    def on_start(self, step: int) -> None:
        """Continue after the lines of the metrics file."""
        del step  # the file has no later line
        lines = self.file.read_lines()
        self.findings = [Finding.from_record(line) for line in lines if line["split"] == FINDING]
        self._enter(0)
        for line in lines:
            if line["split"] != FINDING:
                self._keep(line)
        self._report(self.data_findings)

    def on_record(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add a line with these numbers, and apply the rules to the lines of the phase."""
        self._keep({"step": step, "split": split, **numbers})
        index, lines = self._index, self._lines
        known = self.baselines[index], self.per_step[index]
        view = PhaseView(self.config, index, *known, step, lines["train"], lines["heldout"])
        self._report(diagnose(view))

    def on_close(self, summary: dict[str, Any] | None) -> None:
        """Add the findings to the summary."""
        if summary is not None:
            summary["findings"] = [finding.as_record() for finding in self.findings]

    def _report(self, findings: Sequence[Finding]) -> None:
        known = {finding.rule for finding in self.findings}
        new = [finding for finding in findings if finding.rule not in known]
        for finding in new:
            self.show(finding.rule, finding.sentence, finding.advice)
        self.findings += new
        self.file.write_lines([{**finding.as_record(), "split": FINDING} for finding in new])

    def _keep(self, line: Line) -> None:
        index = phase_of_step(self.config, line["step"])
        if index != self._index:
            self._enter(index)
        kept = self._lines[line["split"]]
        if not kept or kept[-1]["step"] < line["step"]:  # else repeated, as in MetricsFile
            kept.append(line)
        if len(kept) > _MAX_LINES:
            early = len(kept) // 2
            kept[:early] = itertools.islice(kept, 0, early, 2)

    def _enter(self, index: int) -> None:
        self._index = index
        for lines in self._lines.values():
            lines.clear()
