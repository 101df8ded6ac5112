"""Run commands as `python -m` does, in forks of a process that has imported their libraries.

    python -m tests.forked_entries

reads lines of JSON, {"module": ..., "arguments": [...], "platforms": "cpu", "out": FILE, "err":
FILE}, and answers each with the exit code of the process that ran it. The new process runs the
command from its first line on; only the libraries are imported already.
"""

import gc
import importlib
import json
import os
import runpy
import sys
import threading

import jax

# What the entries import, less the entries: running one defines its flags. They are names, and not
# import statements, because a linter removes an import that nothing uses.
LIBRARIES = (
    "bert_jax.logging.plots",
    "bert_jax.inference.vector_files",
    "bert_jax.lab.baselines.frozen_ner",
    "bert_jax.interop.huggingface",
    "bert_jax.trainer.loop",
    "bert_jax.inference.fill_mask",
    "bert_jax.interop.load",
    "bert_jax.tasks.registry",
    "data_pipeline.report.terminal",
)


def become(request: dict) -> None:
    """Set folder, output files and command line of this process from the request."""
    os.chdir(request.get("folder", "."))
    for number, (path, flags) in enumerate(
        [
            (os.devnull, os.O_RDONLY),
            (request["out"], os.O_WRONLY | os.O_CREAT),
            (request["err"], os.O_WRONLY | os.O_CREAT),
        ]
    ):
        os.dup2(os.open(path, flags), number)
    sys.argv = [request["module"], *request["arguments"]]
    # JAX has read the variable already; the processes that an entry starts have not.
    os.environ["JAX_PLATFORMS"] = request["platforms"]
    jax.config.update("jax_platforms", request["platforms"])


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    # A child has the one thread that forks: the others' locks would stay shut in it for ever.
    assert threading.active_count() == 1
    gc.freeze()  # or each child copies what its collector looks at
    for line in sys.stdin:
        request = json.loads(line)
        if os.fork() == 0:
            become(request)
            break
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    else:
        sys.exit()
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
