"""Compiled programs kept in the workdir, so that the next start need not compile them again."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

FOLDER = "compiled"
MOST_BYTES = 4 * 2**30  # kept at a start; the oldest go first
_PROGRAMS = "*-cache"  # as jax names their files


def keep_in(workdir: pathlib.Path, is_writer: bool) -> str:
    """From now on look there before compiling; returns where programs are kept, "" for nowhere.

    Of several processes the writer, the first one, is the only one that deletes, as it is the only
    one for which jax writes. Whoever has set JAX_COMPILATION_CACHE_DIR keeps that folder, and
    JAX_ENABLE_COMPILATION_CACHE=false keeps nothing.
    """
    settings: Any = jax.config
    if not settings.jax_enable_compilation_cache:
        return ""
    if settings.jax_compilation_cache_dir:
        return str(settings.jax_compilation_cache_dir)
    folder = workdir / FOLDER
    if is_writer:
        _delete_oldest(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # jax has asked before whether there is such a folder, and would not ask again.
    compilation_cache.reset_cache()
    return str(folder)


def _delete_oldest(folder: pathlib.Path) -> None:
    kept_bytes = 0
    newest_first = sorted(_times_and_sizes(folder), reverse=True)
    for _, size_bytes, path in newest_first:
        kept_bytes += size_bytes
        if kept_bytes > MOST_BYTES:
            path.unlink(missing_ok=True)


def _times_and_sizes(folder: pathlib.Path) -> Iterator[tuple[int, int, pathlib.Path]]:
    """Of each program; another run may share the folder, and delete some meanwhile."""
    for path in folder.glob(_PROGRAMS):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            yield status.st_mtime_ns, status.st_size, path
