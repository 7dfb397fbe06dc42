"""The probe's loop: one request at a time, hints in between."""

from __future__ import annotations

import os
import select
import time

from devherd.probe import wire
from devherd.probe.files import Files
from devherd.probe.frames import Ended, FrontLink
from devherd.probe.sources import Sources
from devherd.probe.work import Work, capabilities
from devherd.vendor import Vendor


def serve(link: FrontLink, vendor: Vendor, files: Files) -> None:
    """Say that we are ready and work until the front says Stop or is gone. Raises msgspec.DecodeError on rubbish."""
    work = Work(vendor, files)
    sources = Sources(vendor)
    sources.open()
    try:
        link.send(wire.Ready(os.getpid(), capabilities(vendor)))
        while _turn(link, work, sources):
            pass
    except Ended:
        return
    finally:
        sources.close()


def _turn(link: FrontLink, work: Work, sources: Sources) -> bool:
    """One wait and what follows from it. False: the front wants no more."""
    ready = _poll([link.fileno(), *sources.fds()], sources.wait(time.monotonic()))
    if ready - {link.fileno()}:
        sources.fired(time.monotonic())
    for name in sources.hints(time.monotonic()):
        link.send(wire.Hint(name))
    if link.fileno() in ready:
        request = link.receive()
        if isinstance(request, wire.Stop):
            return False
        link.send(work.answer(request))
    return True


def _poll(fds: list[int], timeout: float | None) -> set[int]:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    # Rounded up: a wait cut short by the rounding would spin.
    return {fd for fd, _ in poller.poll(None if timeout is None else int(timeout * 1000) + 1)}
