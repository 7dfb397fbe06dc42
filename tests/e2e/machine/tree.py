"""devherd's files as a package lays them on a node (packaging/systemd/README.md has the places)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

Maker = Callable[[Path], None]
PYTHON = "3.13"
"""The machine's distribution has this one."""
_PACKAGES = ("shared/devherd", "plugins/devherd_generic", "plugins/devherd_watcher")
_CONFIGURATION = ("supervisorconf", "packaging/systemd")
# What the programs of the machine import; the exporter's and the GPU plugins' libraries come along with the list.
REQUIREMENTS = (
    *("grpcio==1.85.3", "protobuf==7.36.2", "supervisor==4.3.0", "psutil==7.2.2", "pyudev==0.24.5"),
    *("msgspec==0.23.0", "PyYAML==6.0.4", "click==8.5.1", "rich==15.0.0"),
)
_PLATFORMS = ("manylinux2010_x86_64", "manylinux_2_12_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64")
_PROGRAMS = ("watcher", "generic")


def download(target: Path) -> None:
    """Wheels for the machine's Python, which need not be this one's."""
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    kinds = [word for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(target)]
    command += ["--python-version", PYTHON, "--implementation", "cp", *platforms, *kinds, *REQUIREMENTS]
    subprocess.run(command, check=True, capture_output=True)


def sources(source: Path) -> Iterator[Path]:
    """Every file of ours that `install` reads."""
    for folder in (*_PACKAGES, *_CONFIGURATION):
        yield from sorted(path for path in (source / folder).rglob("*") if path.is_file() and _wanted(path))


def install(source: Path, wheels: Path, root: Path) -> None:
    """Lay everything below `root`."""
    home = root / "usr/lib/devherd"
    vendored = home / "vendored"
    vendored.mkdir(parents=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(vendored)
    for package in _PACKAGES:
        folder = source / package
        shutil.copytree(folder, vendored / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for place in (home / "bin", home / "lib" / f"python{PYTHON}", root / "etc/devherd/supervisord.d"):
        place.mkdir(parents=True)
    (home / "bin/python").symlink_to("/usr/bin/python3")
    (home / "lib" / f"python{PYTHON}" / "site-packages").symlink_to("../../vendored")
    (root / "usr/bin/devherd").write_text(_COMMAND)
    (root / "usr/bin/devherd").chmod(0o755)
    _configuration(source, root)
    # As a package does it when it is installed. With a prefix Python ignores what the distribution compiled, too.
    python = [
        "/usr/lib/devherd/bin/python",
        "-I",
        "-X",
        "pycache_prefix=/var/cache/devherd/pyc",
        "-m",
        "compileall",
        "-q",
    ]
    places = ["/usr/lib/devherd/vendored", f"/usr/lib/python{PYTHON}"]
    subprocess.run(["chroot", str(root), *python, *places], check=False, capture_output=True)


def _configuration(source: Path, root: Path) -> None:
    etc = root / "etc/devherd"
    shutil.copy2(source / "supervisorconf/supervisord.conf", etc)
    for name in _PROGRAMS:
        shutil.copy2(source / f"supervisorconf/conf.d/{name}.conf", etc / "supervisord.d")
    (etc / "devherd.yaml").write_text("log:\n  level: info\n")
    units = source / "packaging/systemd"
    for unit in units.glob("*.service"):
        shutil.copy2(unit, root / "usr/lib/systemd/system")
    shutil.copy2(units / "devherd.tmpfiles.conf", root / "usr/lib/tmpfiles.d/devherd.conf")


def _wanted(path: Path) -> bool:
    return "__pycache__" not in path.parts


_COMMAND = """#!/bin/sh
exec /usr/lib/devherd/bin/python -I -m devherd.cli.main "$@"
"""
