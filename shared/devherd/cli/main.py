"""`devherd`: the entry point. It loads nothing before Ctrl-C has been made quiet."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. No exception leaves it."""
    with _quiet():
        from devherd.cli.root import main as run
    return run(arguments)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Have Ctrl-C end the process as it ends any other, without a traceback of whatever is being imported."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    raise SystemExit(main())
