"""Apply the rules after each line of a run's metrics; each reports once, across restarts too."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.config import Config, phase_of_step
from bert_jax.monitoring.rules import Finding, Line, PhaseFacts, PhaseView, diagnose
from data_pipeline.io.jsonl import FINDING

# Lines of a phase that rules read; beyond it, every second line of the first half is dropped.
_MAX_LINES = 1000


@dataclasses.dataclass
class Watch:
    """Keep the lines of the newest phase and all findings; a logging.metrics_writer.Watcher."""

    config: Config
    phases: Sequence[PhaseFacts]
    data_findings: Sequence[Finding]  # known before the first step
    show: Callable[[Finding], None]
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._lines: dict[str, list[Line]] = {"train": [], "heldout": []}
        self._index = 0

    def restart(self, lines: Sequence[Line]) -> list[dict[str, Any]]:
        """Continue after the lines of a metrics.jsonl; return the records of new findings."""
        self.findings = [Finding.from_record(line) for line in lines if line["split"] == FINDING]
        self._enter(0)
        for line in lines:
            if line["split"] != FINDING:
                self._keep(line)
        return self._report(self.data_findings)

    def add(self, line: Line) -> list[dict[str, Any]]:
        """Read a line of metrics.jsonl; return the records of new findings."""
        self._keep(line)
        lines, facts = self._lines, self.phases[self._index]
        view = PhaseView(self.config, facts, int(line["step"]), lines["train"], lines["heldout"])
        return self._report(diagnose(view))

    def _report(self, findings: Sequence[Finding]) -> list[dict[str, Any]]:
        known = {finding.rule for finding in self.findings}
        new = [finding for finding in findings if finding.rule not in known]
        for finding in new:
            self.show(finding)
        self.findings += new
        return [finding.as_record() for finding in new]

    def _keep(self, line: Line) -> None:
        index = phase_of_step(self.config, line["step"])
        if index != self._index:
            self._enter(index)
        kept = self._lines[line["split"]]
        kept.append(line)
        if len(kept) > _MAX_LINES:
            early = len(kept) // 2
            kept[:early] = itertools.islice(kept, 0, early, 2)

    def _enter(self, index: int) -> None:
        self._index = index
        for lines in self._lines.values():
            lines.clear()
