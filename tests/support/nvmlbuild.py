"""Builds the C stand-in for NVML with the machine's compiler, once for all tests of a run."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from devherd_gpu.nvidia import standinstate

SOURCES = Path(__file__).with_name("nvml")
FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


def no_compiler() -> str:
    """Why the library cannot be built here; empty: it can."""
    return "" if _compiler() else "no C compiler (cc, gcc or clang): the C stand-in for NVML cannot be built"


def _compiler() -> str:
    return next((found for name in (os.environ.get("CC", "cc"), "gcc", "clang") if (found := shutil.which(name))), "")


def build() -> Path:
    """The library, compiled unless these very sources were before. Raises CalledProcessError with what cc said."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    place = Path(tempfile.gettempdir()) / f"devherd-test-nvml-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    library = place / f"{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=place) as folder:
            made = Path(folder) / library.name
            units = [str(source) for source in sources if source.suffix == ".c"]
            subprocess.run([_compiler(), *FLAGS, "-o", str(made), *units, "-lpthread", "-ldl"], check=True)
            made.replace(library)
    return library


def install(root: Path) -> Path:
    """The library below a root, beside where its state file is, which is where a simulation's plugin looks for it."""
    target = root / standinstate.LIBRARY_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(build(), target)
    return target


def binding(library: Path) -> Any:
    """NVIDIA's binding with this library in the real one's place. There is one binding in a process."""
    import pynvml

    pynvml.nvmlLib = ctypes.CDLL(str(library))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return pynvml
