"""The packages of the wheel and their data; pyproject.toml has the rest."""

from setuptools import find_namespace_packages, find_packages, setup


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
    packages=list(NAMES),
    package_dir=NAMES,
    package_data={
        "bert_jax": ["py.typed"],
        "bert_jax.planning": ["*.json"],
        "bert_jax.launch": ["*.sh", "*.env", "Dockerfile"],
        "bert_jax.launch.worker": ["*.sh"],
        "data_pipeline": ["py.typed"],
        "data_pipeline.report": ["*.html", "*.css"],
    },
)
