"""The console on which commands print tables and sentences; what comes from outside is escaped."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.measure import Measurement
from rich.segment import Segment

from data_pipeline.terminal_text import escape


def console(**options: Any) -> Console:
    """Return a rich Console that shows control characters in its texts and does not send them."""
    made = Console(**options)
    made.push_render_hook(_EscapeTexts())
    return made


class _EscapeTexts(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(renderable) for renderable in renderables]


class _Escaped:
    """A renderable whose texts are escaped once they are laid out; rich's own controls pass."""

    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._renderable, options):
            text, style, control = segment
            yield segment if control else Segment(escape(text), style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._renderable)
