"""Run worker processes that answer one request at a time, to time two programs in turn.

A request and its answer are one line of JSON each. Standard library only, since both environments
import it.
"""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]


def serve(answers: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer the requests on stdin by these functions, until it closes.

    Output of libraries goes to stderr, so that the pipe carries only answers.
    """
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        request = json.loads(line)
        answer = answers[request["name"]](**request["arguments"])
        pipe.write(json.dumps(answer) + "\n")
        pipe.flush()


class Worker:
    """Run `python -m module` in a process that waits for requests between its turns."""

    def __init__(
        self,
        python: pathlib.Path,
        module: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process; settings are environment variables, JAX_PLATFORMS=cpu by default."""
        self.module = module
        self._process = subprocess.Popen(
            [str(python), "-m", module],
            cwd=ROOT,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"} | dict(settings or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
          RuntimeError: the worker ended instead; what it printed stands on stderr.
        """
        requests, answers = self._process.stdin, self._process.stdout
        line = ""
        if requests is not None and answers is not None and self._process.poll() is None:
            requests.write(json.dumps({"name": name, "arguments": arguments}) + "\n")
            requests.flush()
            line = answers.readline()
        if not line:
            raise RuntimeError(
                f"{self.module} ended with exit code {self._process.wait()} while asked to {name}; "
                "its error stands above"
            )
        return json.loads(line)

    def close(self) -> None:
        """Let the worker end by itself."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
