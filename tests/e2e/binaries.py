"""Builds the real programs that the suite runs: kubelet, control plane, etcd, containerd.

All of them are published as versioned Go modules, so a throwaway module that requires one can build it, with CGO off
and nothing but the module proxy. A build is kept below the cache folder by name and version; only the first run on a
machine pays for it. `python -m e2e.binaries` builds what is named on its command line (see --help).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "k8s.io/kubernetes"

# The newest patch of each line when it was last looked up (`--update` prints today's). Pinned, so that a release of
# somebody else's never turns this suite red on a day when nothing changed here.
KUBERNETES_VERSIONS = {"1.34": "v1.34.4", "1.35": "v1.35.4", "1.36": "v1.36.3", "1.37": "v1.37.2"}
NEWEST = "1.37"
ETCD_VERSION = "v3.6.16"
CONTAINERD_VERSION = "v2.2.9"

# `k8s.io/api => ./staging/src/k8s.io/api`: the module's own list of what is published beside it.
STAGED = re.compile(r"^\s*(k8s\.io/\S+)(?: v\S+)? => \./staging", re.MULTILINE)


class BuildError(Exception):
    """A program could not be built: which, and the last lines of what the Go tool said."""


@dataclass(frozen=True)
class Recipe:
    """How to build some programs of one Go module.

    packages: program name -> import path of its main package.
    """

    module: str
    version: str
    packages: Mapping[str, str]
    tags: str = ""


def kubernetes(line: str, *programs: str) -> Recipe:
    """Programs of kubernetes `line` ("1.36"), or of a full version ("v1.36.1")."""
    version = line if line.startswith("v") else KUBERNETES_VERSIONS[line]
    return Recipe(KUBERNETES, version, {name: f"{KUBERNETES}/cmd/{name}" for name in programs})


def etcd() -> Recipe:
    """etcd for the API server."""
    return Recipe("go.etcd.io/etcd/server/v3", ETCD_VERSION, {"etcd": "go.etcd.io/etcd/server/v3"})


def containerd() -> Recipe:
    """containerd 2, which hands CDI devices to containers (Debian 12's 1.6 does not)."""
    root = "github.com/containerd/containerd/v2"
    programs = ("containerd", "containerd-shim-runc-v2", "ctr")
    return Recipe(root, CONTAINERD_VERSION, {name: f"{root}/cmd/{name}" for name in programs}, "no_btrfs,no_zfs")


def cache() -> Path:
    """Where builds are kept: $DEVHERD_E2E_CACHE, else ~/.cache/devherd-e2e."""
    return Path(os.environ.get("DEVHERD_E2E_CACHE") or Path.home() / ".cache" / "devherd-e2e")


def built(recipe: Recipe) -> dict[str, Path]:
    """Program name -> path of the recipe's programs; what is not in the cache yet is built now (minutes).

    Raises BuildError.
    """
    folder = cache() / f"{recipe.module.replace('/', '_')}-{recipe.version}"
    paths = {name: folder / name for name in recipe.packages}
    if all(path.exists() for path in paths.values()):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        missing = [name for name, path in paths.items() if not path.exists()]
        if missing:
            _build(recipe, missing, folder)
    return paths


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two builds of the same programs wait for each other."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe, missing: list[str], folder: Path) -> None:
    print(f"building {', '.join(missing)} {recipe.version} (once; minutes) ...", file=sys.stderr, flush=True)
    work = Path(tempfile.mkdtemp(prefix="devherd-build-"))
    try:
        _module(recipe, work)
        for name in missing:
            _go(work, "get", f"{recipe.packages[name]}@{recipe.version}")
        for name in missing:
            new = folder / f".{name}.new"
            flags = ["-trimpath", "-ldflags", _ldflags(recipe), "-tags", recipe.tags, "-o", str(new)]
            _go(work, "build", *flags, recipe.packages[name])
            os.replace(new, folder / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _module(recipe: Recipe, work: Path) -> None:
    """The throwaway module: requires the program's, and maps each staged module to its published version."""
    _go(work, "mod", "init", "throwaway")
    answer = json.loads(_go(work, "mod", "download", "-json", f"{recipe.module}@{recipe.version}"))
    staged = STAGED.findall(Path(answer["GoMod"]).read_text())
    published = "v0." + recipe.version.removeprefix("v1.")
    with open(work / "go.mod", "a") as file:
        file.write(f"\nrequire {recipe.module} {recipe.version}\n")
        file.writelines(f"replace {name} => {name} {published}\n" for name in staged)


def _ldflags(recipe: Recipe) -> str:
    if recipe.module != KUBERNETES:
        return "-s -w"
    major, minor = recipe.version.removeprefix("v").split(".")[:2]
    stamp = {"gitVersion": recipe.version, "gitMajor": major, "gitMinor": minor}
    places = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return "-s -w " + " ".join(f"-X {place}.{key}={value}" for place in places for key, value in stamp.items())


def _go(work: Path, *arguments: str) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOWORK": "off"}
    try:
        done = subprocess.run(
            ["nice", "-n", "10", "go", *arguments],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise BuildError("no `go` on the PATH: install Go, or name finished programs by path") from error
    if done.returncode:
        tail = "\n".join(done.stderr.splitlines()[-20:])
        raise BuildError(f"go {' '.join(arguments)} failed ({done.returncode}):\n{tail}")
    return done.stdout


def newest_served() -> dict[str, str]:
    """Line -> newest release that the module proxy serves now, for the lines this suite knows."""
    with tempfile.TemporaryDirectory() as work:
        words = _go(Path(work), "list", "-m", "-versions", KUBERNETES).split()
    found: dict[str, str] = {}
    for word in words:
        match = re.fullmatch(r"v(\d+\.\d+)\.\d+", word)
        if match and match[1] in KUBERNETES_VERSIONS:
            found[match[1]] = word
    return found


def main() -> int:
    """Command line: build what is named, print the paths."""
    parser = argparse.ArgumentParser(prog="python -m e2e.binaries", description=__doc__)
    parser.add_argument("what", nargs="*", help="kubelet, control-plane, etcd, containerd (default: all)")
    parser.add_argument("--line", action="append", help="kubelet line, as 1.36; more than once (default: the newest)")
    parser.add_argument("--all-lines", action="store_true", help="kubelets of every line")
    parser.add_argument("--update", action="store_true", help="print the newest releases served, build nothing")
    given = parser.parse_args()
    if given.update:
        print(json.dumps(newest_served(), indent=1))
        return 0
    lines = list(KUBERNETES_VERSIONS) if given.all_lines else given.line or [NEWEST]
    recipes = {
        "kubelet": [kubernetes(line, "kubelet") for line in lines],
        "control-plane": [kubernetes(NEWEST, "kube-apiserver", "kube-scheduler", "kubectl")],
        "etcd": [etcd()],
        "containerd": [containerd()],
    }
    unknown = set(given.what) - set(recipes)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(recipes)}")
    wanted = [recipe for what in given.what or recipes for recipe in recipes[what]]
    return max([_show(recipe) for recipe in wanted], default=0)


def _show(recipe: Recipe) -> int:
    try:
        paths = built(recipe)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    for path in paths.values():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
