"""Download a checkpoint from the Hugging Face hub into the hub's own cache, or upload an export.

huggingface_hub is needed for nothing else, and imported here alone. Account and place are its own:
HF_TOKEN or `hf auth login`, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import fnmatch
import functools
import pathlib
import re
from typing import Any

# What bert_jax reads of a repository, and nothing else of it.
FILES = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "*.model",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)
_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
_REVISION = re.compile(r"[\w./-]+")


def is_name(where: str) -> bool:
    """Tell whether a text can be NAME, ORG/NAME or one of them with @REVISION."""
    name, at, revision = where.partition("@")
    fits = _NAME.fullmatch(name) is not None and ".." not in where
    return fits and (not at or _REVISION.fullmatch(revision) is not None)


@functools.cache  # a command reads an address in several places
def fetch(where: str) -> pathlib.Path:
    """Return the folder in the hub's cache with the files of NAME[@REVISION] that are read.

    The hub is asked once in a process. Without a network what an earlier call downloaded is taken.

    Raises:
      ValueError: huggingface_hub is missing, or the hub has no such model for this account.
      OSError: the hub does not answer, and the cache has not got it.
    """
    name, _, revision = where.partition("@")
    address = f"hf:{where}"
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ValueError(
            f"the checkpoint {address!r} is not a folder of this machine, and to download it from "
            "the Hugging Face hub huggingface_hub is missing: pip install huggingface_hub, or give "
            "hf:DIR"
        ) from error
    try:
        info = huggingface_hub.HfApi().model_info(
            name, revision=revision or None, files_metadata=True
        )
        wanted = {file.rfilename: file.size or 0 for file in info.siblings or [] if _is_read(file)}
        if "config.json" not in wanted:
            raise ValueError(f"{address} on the Hugging Face hub holds no config.json of a BERT")
        if not any(file.endswith(".safetensors") for file in wanted):
            raise ValueError(
                f"{address} on the Hugging Face hub has no model.safetensors; ask its owner for "
                "one, or convert its weights with transformers' save_pretrained"
            )
        _announce(address, info.sha, wanted)
        folder = _downloaded(huggingface_hub, name, info.sha or revision or "main", wanted)
        # Keeps in the cache which commit the revision is, for a call without a network.
        huggingface_hub.hf_hub_download(name, "config.json", revision=revision or None)
        return folder
    except errors.GatedRepoError as error:
        raise ValueError(
            f"{address} is for accounts that its owner let in; ask on {_page(name)}, then set "
            "HF_TOKEN or run hf auth login"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"the checkpoint {address!r} is not a folder of this machine, and the Hugging Face hub "
            "has no such model, or not for this account; look at the name, or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{name} has no revision {revision!r} on the Hugging Face hub") from error
    except (errors.OfflineModeIsEnabled, errors.HfHubHTTPError, OSError) as error:
        return _cached(huggingface_hub, address, name, revision, error)
    except ValueError:
        raise
    except Exception as error:
        if not _is_of_the_network(error):
            raise
        return _cached(huggingface_hub, address, name, revision, error)


def check_upload(name: str, is_public: bool) -> None:
    """Raise if a folder could not be uploaded to ORG/NAME; nothing is changed there.

    Raises:
      ValueError: the name is malformed, huggingface_hub or an account is missing or another's, or a
        repository that is there can be read by everybody and is_public is False.
      OSError: the hub does not answer.
    """
    if "/" not in name or not is_name(name) or "@" in name:
        raise ValueError(f"--push_to_hub is {name!r}; give ORG/NAME, a name on the hub")
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ValueError(
            f"--push_to_hub is {name!r}, and huggingface_hub is missing: pip install "
            "huggingface_hub, or leave the flag out"
        ) from error
    api = huggingface_hub.HfApi()
    try:
        account = api.whoami()
        owners = [account["name"], *(org["name"] for org in account.get("orgs", []))]
        if name.partition("/")[0] not in owners:
            raise ValueError(
                f"--push_to_hub is {name!r}, and the account of the Hugging Face hub may write to "
                f"{', '.join(owners)}; give one of these, or set HF_TOKEN to another's"
            )
        try:
            is_private = api.model_info(name).private
        except errors.RepositoryNotFoundError:
            return
        if not (is_private or is_public):
            raise ValueError(
                f"--push_to_hub is {name!r}, which is on the hub already and can be read by "
                "everybody; add --public=true, or give another name"
            )
    except errors.LocalTokenNotFoundError as error:
        raise ValueError(
            f"--push_to_hub is {name!r}, and no account of the Hugging Face hub is known here; set "
            "HF_TOKEN, or run hf auth login"
        ) from error
    except errors.HfHubHTTPError as error:
        if error.response is None or error.response.status_code not in (401, 403):
            raise OSError(_unanswered(error)) from error
        raise ValueError(
            f"--push_to_hub is {name!r}, and the Hugging Face hub does not accept the token; set "
            "HF_TOKEN to one that may write, or run hf auth login"
        ) from error
    except ValueError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not _is_of_the_network(error):
            raise
        raise OSError(_unanswered(error)) from error


def upload(folder: pathlib.Path, name: str, is_public: bool) -> str:
    """Upload a folder to ORG/NAME, made private unless is_public; returns its page.

    Raises:
      OSError: the hub refuses, or does not answer.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    huggingface_hub.utils.disable_progress_bars()  # they would come out with an error
    try:
        repository = api.create_repo(name, private=not is_public, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Upload an export of bert_jax"
        )
    except Exception as error:
        if isinstance(error, OSError | ValueError) or _is_of_the_network(error):
            raise OSError(_unanswered(error)) from error
        raise
    return str(repository)


def _is_of_the_network(error: Exception) -> bool:
    """Tell an error of the HTTP client, whose package changes with huggingface_hub's version."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "requests")


def _unanswered(error: Exception) -> str:
    return f"the Hugging Face hub cannot be asked: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")


def _is_read(file: Any) -> bool:
    return any(fnmatch.fnmatchcase(file.rfilename, pattern) for pattern in FILES)


def _announce(address: str, sha: str | None, wanted: dict[str, int]) -> None:
    size = sum(wanted.values())
    amount = f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size:,} bytes"
    print(
        f"{address} at {(sha or '')[:12]} of the Hugging Face hub: {len(wanted)} files, {amount}, "
        "from its cache where they are there",
        flush=True,
    )


def _downloaded(hub: Any, name: str, revision: str, wanted: dict[str, int]) -> pathlib.Path:
    folders = {
        pathlib.Path(hub.hf_hub_download(name, file, revision=revision)).parent for file in wanted
    }
    return folders.pop()


def _cached(hub: Any, address: str, name: str, revision: str, error: Exception) -> pathlib.Path:
    """Return what an earlier call downloaded.

    Raises:
      OSError: nothing.
    """
    try:
        return pathlib.Path(
            hub.snapshot_download(
                name, revision=revision or None, allow_patterns=list(FILES), local_files_only=True
            )
        )
    except Exception:
        raise OSError(
            f"{address} is neither a folder of this machine nor in the hub's cache, and "
            f"{_unanswered(error)}; give hf:DIR, or try again with a network"
        ) from error


def _page(name: str) -> str:
    return f"https://huggingface.co/{name}"
