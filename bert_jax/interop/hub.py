"""Download a checkpoint from the Hugging Face hub into the hub's own cache, or upload an export.

No other module imports huggingface_hub. The library's settings apply:
HF_TOKEN or `hf auth login`, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import contextlib
import fnmatch
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from data_pipeline.io import Refused
from data_pipeline.io.bucket import ask_in_time
from data_pipeline.io.errors import get_first_line, is_transient

# The files of a repository that bert_jax reads.
FILES = (
    "config.json",
    "adapter_config.json",
    "vocab.txt",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "*.model",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "*_Pooling/config.json",
)
_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
_REVISION = re.compile(r"[\w./-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"\w[\w.=+~-]{0,199}")  # becomes the name of a file in the cache
# Limit for a request about a file, since redirects may form a loop.
_ANSWER_SECS = 60.0
# Errors that huggingface_hub raises where an answer's JSON has an unexpected shape.
_MALFORMED = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)


def is_name(place: str) -> bool:
    """Return whether a text can be NAME, ORG/NAME or one of them with @REVISION."""
    name, mark, revision = place.partition("@")
    fits = _NAME.fullmatch(name) is not None and ".." not in place
    return fits and (not mark or _REVISION.fullmatch(revision) is not None)


@functools.cache  # a command reads an address several times
def fetch(place: str) -> pathlib.Path:
    """Return the folder in the hub's cache with the files of NAME[@REVISION] that are read.

    A process asks the hub once. Without a network the files of an earlier download are used.

    Raises:
      Refused: huggingface_hub is missing, or the hub has no such model for this account.
      OSError: the hub does not answer, and the model is not in the cache.
    """
    name, _, revision = place.partition("@")
    address = f"hf:{place}"
    unknown = f"the checkpoint {address!r} is not a folder on this machine, and"
    huggingface_hub = _import_hub(unknown, "give hf:DIR")
    errors = huggingface_hub.errors
    try:
        return _download(huggingface_hub, address, name, revision or None)
    except errors.GatedRepoError as error:
        raise Refused(
            f"{address} is open only to accounts that its owner approves; ask on "
            f"https://huggingface.co/{name}, then set HF_TOKEN or run hf auth login"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise Refused(
            f"{unknown} the Hugging Face hub has no such model, or hides it from this account; "
            "check the name, or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise Refused(f"{name} has no revision {revision!r} on the Hugging Face hub") from error
    except Exception as error:
        if not _is_network_error(error):
            raise
        try:
            folder = huggingface_hub.snapshot_download(
                name, revision=revision or None, allow_patterns=list(FILES), local_files_only=True
            )
        except Exception:
            raise _choose_kind(error, errors)(
                f"{address} is neither a folder on this machine nor in the hub's cache, and "
                f"{_describe_failure(error)}; give hf:DIR, or try again with a network"
            ) from error
        return pathlib.Path(folder)


def _import_hub(problem: str, way_out: str) -> Any:
    """Return the library of the Hugging Face hub, which an installation may lack."""
    try:
        import huggingface_hub.errors
    except ImportError as error:
        raise Refused(
            f"{problem} huggingface_hub, which asks the Hugging Face hub, is missing: pip install "
            f"huggingface_hub, or {way_out}"
        ) from error
    return huggingface_hub


def _download(hub: Any, address: str, name: str, revision: str | None) -> pathlib.Path:
    """Download the files that are read and not cached; return their folder in the cache."""
    with _refuse_malformed(hub, address):
        info = hub.HfApi().model_info(name, revision=revision, files_metadata=True)
        commit = _check(_COMMIT, info.sha)
        wanted = {
            file.rfilename: _check_size(file.size)
            for file in info.siblings or []
            if any(
                fnmatch.fnmatchcase(file.rfilename, pattern)
                and file.rfilename.count("/") == pattern.count("/")
                for pattern in FILES
            )
        }
    if "config.json" not in wanted:
        raise Refused(f"{address} on the Hugging Face hub holds no config.json of a BERT")
    if not any(file.endswith(".safetensors") for file in wanted):
        raise Refused(
            f"{address} on the Hugging Face hub has no model.safetensors; ask its owner for one, "
            "or convert its weights with transformers' save_pretrained"
        )
    size = sum(wanted.values())
    amount = f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size:,} bytes"
    print(
        f"{address} at {commit[:12]} of the Hugging Face hub: {len(wanted)} files, {amount}, from "
        "its cache if present",
        flush=True,
    )
    with _refuse_malformed(hub, address):
        paths = {file: _download_file(hub, name, file, commit) for file in wanted}
        # Records in the cache which commit the revision names, for a call without a network.
        _download_file(hub, name, "config.json", revision)
    return pathlib.Path(paths["config.json"]).parent


def _download_file(hub: Any, name: str, file: str, revision: str | None) -> str:
    """Return the path of a file in the cache, after its download if it is not there.

    huggingface_hub builds a path in its cache from the ETag and the commit that the hub sends, so
    both are checked first.
    """
    is_commit = revision is not None and _COMMIT.fullmatch(revision) is not None
    cached = hub.try_to_load_from_cache(name, file, revision=revision)
    if not (is_commit and isinstance(cached, str)):
        url = hub.hf_hub_url(name, file, revision=revision)
        answer = ask_in_time(
            lambda: hub.get_hf_file_metadata(url),
            _ANSWER_SECS,
            "the Hugging Face hub",
            f"it gives no answer within {_ANSWER_SECS:g} s",
        )
        _check(_ETAG, answer.etag)
        _check(re.compile(revision or "") if is_commit else _COMMIT, answer.commit_hash)
        if answer.xet_file_data is not None:
            _check(_ETAG, answer.xet_file_data.file_hash)
    return str(hub.hf_hub_download(name, file, revision=revision))


def _check(pattern: re.Pattern[str], text: Any) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(f"{text!r:.80}")
    return text


def _check_size(size: Any) -> int:
    if size is not None and (type(size) is not int or not 0 <= size < 2**63):
        raise ValueError(f"a file of {size!r:.80} bytes")
    return size or 0


@contextlib.contextmanager
def _refuse_malformed(hub: Any, subject: str) -> Iterator[None]:
    """Turn the errors of a malformed answer into Refused.

    huggingface_hub builds its classes from JSON without a check, so that a list or an HTML page
    may raise any error.
    """
    try:
        yield
    except _MALFORMED as error:
        if isinstance(error, OSError | Refused):
            raise
        words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise Refused(
            f"{subject}: the Hugging Face hub at {hub.constants.ENDPOINT} gives an unusable "
            f"answer ({words}); check HF_ENDPOINT and the proxy of this network, or give hf:DIR"
        ) from error


def check_upload(name: str, is_public: bool) -> None:
    """Raise if a folder could not be uploaded to ORG/NAME; nothing is changed there."""
    given = f"--push_to_hub is {name!r}"
    if "/" not in name or not is_name(name) or "@" in name:
        raise Refused(f"{given}; give ORG/NAME, a name on the hub")
    huggingface_hub = _import_hub(f"{given}, and", "leave the flag out")
    errors, api = huggingface_hub.errors, huggingface_hub.HfApi()
    try:
        with _refuse_malformed(huggingface_hub, given):
            account = api.whoami()
            owners = [account["name"], *(org["name"] for org in account.get("orgs", []))]
            if name.partition("/")[0] not in owners:
                raise Refused(
                    f"{given}, and the account of the Hugging Face hub may write to "
                    f"{', '.join(owners)}; give one of these, or set HF_TOKEN to another's"
                )
            if not (is_public or api.model_info(name).private):
                raise Refused(
                    f"{given}, which is on the hub already and can be read by everybody; add "
                    "--public=true, or give another name"
                )
    except errors.RepositoryNotFoundError:
        return
    except errors.LocalTokenNotFoundError as error:
        raise Refused(
            f"{given}, and no account of the Hugging Face hub is known here; set HF_TOKEN, or run "
            "hf auth login"
        ) from error
    except Exception as error:
        if not _is_network_error(error):
            raise
        response = getattr(error, "response", None)
        if response is None or response.status_code not in (401, 403):
            raise _choose_kind(error, errors)(_describe_failure(error)) from error
        raise Refused(
            f"{given}, and the Hugging Face hub does not accept the token; set HF_TOKEN to one "
            "that may write, or run hf auth login"
        ) from error


def upload(folder: pathlib.Path, name: str, is_public: bool) -> str:
    """Upload a folder to ORG/NAME, private unless is_public; return the URL of its page.

    Files of an earlier upload that would be read with the new ones are deleted, such as shards.

    Raises:
      OSError: the hub refuses, or does not answer.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    huggingface_hub.utils.disable_progress_bars()  # they would mix with error messages
    try:
        repository = api.create_repo(name, private=not is_public, exist_ok=True)
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Upload an export of bert_jax",
            delete_patterns=list(FILES),
        )
    except Exception as error:
        if isinstance(error, ValueError) or _is_network_error(error):
            raise OSError(_describe_failure(error)) from error
        raise
    return str(repository)


def _is_network_error(error: Exception) -> bool:
    """Return whether the hub refused or was not reached; the HTTP client depends on its version."""
    client = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or client in ("httpx", "httpx2", "requests")


def _choose_kind(error: Exception, errors: Any) -> type[OSError]:
    """Return ConnectionError if the same command may succeed later, else OSError."""
    is_temporary = is_transient(error) and not isinstance(error, errors.OfflineModeIsEnabled)
    return ConnectionError if is_temporary else OSError


def _describe_failure(error: Exception) -> str:
    line = get_first_line(error).rstrip(".")
    return f"the Hugging Face hub cannot be asked: {line}"
