"""Generate the gRPC stubs in shared/devherd/api from the contracts in this folder.

`python proto/generate.py` writes them; with `--check` it writes nothing and exits 1 when the checked-in
files differ from what the contracts say. The generator must not be newer than the runtime that loads its
output (protobuf refuses such code), so the pinned versions in pyproject.toml are compared first.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "shared" / "devherd" / "api"
PACKAGE = "devherd/api"


def sources() -> dict[str, Path]:
    """Map a stub's module name (`deviceplugin_v1beta1`) to its contract (`deviceplugin/v1beta1/*.proto`)."""
    return {f"{path.parts[-3]}_{path.parts[-2]}": path for path in sorted(HERE.glob("*/*/*.proto"))}


def _release(distribution: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(distribution).split(".")[:3])


def check_versions() -> None:
    """Refuse a generator that is newer than the installed grpcio."""
    if _release("grpcio-tools") > _release("grpcio"):
        sys.exit(
            f"grpcio-tools {version('grpcio-tools')} is newer than grpcio {version('grpcio')}: "
            "the stubs would not load; install the versions that pyproject.toml pins"
        )


def generate(into: Path) -> None:
    """Write every stub below `into` as devherd/api/<name>_pb2*.py(i)."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    plugins = [
        f"--plugin={tool}={Path(sysconfig.get_path('scripts')) / tool}"
        for tool in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
    ]
    with tempfile.TemporaryDirectory() as tree:
        # The imports inside the stubs follow the contracts' paths, so they are laid out like the package.
        package = Path(tree) / PACKAGE
        package.mkdir(parents=True)
        names = []
        for name, path in sources().items():
            shutil.copyfile(path, package / f"{name}.proto")
            names.append(f"{PACKAGE}/{name}.proto")
        outputs = [f"--python_out={into}", f"--grpc_python_out={into}"]
        outputs += [f"--mypy_out=quiet:{into}", f"--mypy_grpc_out=quiet:{into}"]
        status = protoc.main(["protoc", *plugins, f"--proto_path={tree}", *outputs, *names])
    if status != 0:
        sys.exit(f"protoc ended with {status}; its messages above name the contract and line")


def stubs(folder: Path) -> dict[str, bytes]:
    """Read the generated files of a folder, by name."""
    return {
        path.name: path.read_bytes() for path in sorted(folder.glob("*_pb2*.py*")) if path.suffix in (".py", ".pyi")
    }


def main(argv: list[str] | None = None) -> int:
    """Write or check the stubs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the checked-in stubs differ")
    check = parser.parse_args(argv).check
    check_versions()
    with tempfile.TemporaryDirectory() as made:
        generate(Path(made))
        fresh = stubs(Path(made) / PACKAGE)
    present = stubs(TARGET)
    changed = sorted(name for name in fresh.keys() | present.keys() if fresh.get(name) != present.get(name))
    if check:
        for name in changed:
            print(f"shared/devherd/api/{name}: does not match proto/; run `make proto`", file=sys.stderr)
        return 1 if changed else 0
    for name in changed:
        if name in fresh:
            (TARGET / name).write_bytes(fresh[name])
        else:
            (TARGET / name).unlink()
        print(f"shared/devherd/api/{name}: {'written' if name in fresh else 'removed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
