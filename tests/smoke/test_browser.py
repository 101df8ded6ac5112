"""The manual and the reports in a real browser: nothing is cut or missing, and no error is logged.

Needs playwright and the system's Chromium or Chrome; CHROMIUM names another one.
"""

import functools
import http.server
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest

from tests.docs import pages

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason=f"needs a browser: {', '.join(NAMES)}"),
]
PHONE, DESKTOP = 390, 1440  # pixels
# What a reader cannot see: a page wider than the window, a picture that is not there and, on a
# desktop, the end of a line of code or of a row of a table.
CUT = """isDesktop => {
  const isCut = element => element.scrollWidth > element.clientWidth + 1;
  const all = selector => [...document.querySelectorAll(selector)];
  const found = all('img').filter(image => image.complete && !image.naturalWidth);
  if (isDesktop) found.push(...all('pre, pre code, .scroll').filter(isCut));
  const words = found.map(element => element.outerHTML.slice(0, 200));
  return isCut(document.documentElement) ? ['the page scrolls sideways', ...words] : words;
}"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def look():
    """Return a function that opens all pages of a folder, and lists what is wrong in them."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def look_at(folder: pathlib.Path) -> list[str]:
            serve = functools.partial(_Handler, directory=str(folder))
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            wrong = []
            for width in (PHONE, DESKTOP):
                window = browser.new_page(viewport={"width": width, "height": 900})
                logged = []
                window.on("console", lambda line, to=logged: to.append((line.type, line.text)))
                window.on("pageerror", lambda error, to=logged: to.append(("error", str(error))))
                for path in sorted(folder.rglob("*.html")):
                    name = path.relative_to(folder)
                    window.goto(f"http://127.0.0.1:{server.server_port}/{name}", wait_until="load")
                    errors = [text for kind, text in logged if kind == "error"]
                    cut = window.evaluate(CUT, width == DESKTOP)
                    wrong += [f"{name} at {width}: {each}" for each in [*errors, *cut]]
                    logged.clear()
                window.close()
            server.shutdown()
            return wrong

        yield look_at
        browser.close()


def test_the_check_finds_what_is_cut_missing_or_wrong(tmp_path, look):
    body = f"<pre>{'x' * 900}</pre><img src=no.png><script>console.error('planted')</script>"
    (tmp_path / "page.html").write_text(body)
    wrong = "\n".join(look(tmp_path))
    for words in ("at 390: the page scrolls", "no.png", "planted", "at 1440: <pre"):
        assert words in wrong


def test_the_manual_can_be_read(tmp_path, look):
    pytest.importorskip("material", reason="needs the extra [docs]: mkdocs-material")
    words = ["mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    subprocess.run([sys.executable, "-m", *words], cwd=pages.ROOT, check=True)
    assert look(tmp_path / "site") == []


def test_the_reports_can_be_read(tmp_path, look, forked, trained, tiny_store):
    store, run, runs = (tmp_path / name for name in ("store.html", "run.html", "runs.html"))
    forked("data_pipeline.inspect", f"--store={tiny_store}", f"--html={store}", "--examples=2")
    other = shutil.copytree(trained, tmp_path / "other")
    forked("bert_jax.report", trained, f"--output={run}", "--guesses=2")
    forked("bert_jax.report", trained, other, f"--output={runs}")
    shutil.rmtree(other)
    assert look(tmp_path) == []
