"""From a bare process to a loaded vendor."""

from __future__ import annotations

import logging
import socket

import msgspec

from devherd.host import Host
from devherd.log import event, setup
from devherd.probe import wire
from devherd.probe.files import Files
from devherd.probe.frames import Ended, FrontLink
from devherd.probe.loop import serve
from devherd.probe.work import failed
from devherd.vendor import Manifest, Vendor, VendorFactory, load_object

logger = logging.getLogger(__name__)


class _Loading:
    """A manifest and its factory, imported while the front still prepares; a failure waits for who asks."""

    def __init__(self, reference: str) -> None:
        self._error: BaseException | None = None
        try:
            self._manifest: Manifest = load_object(reference)
            self._factory: VendorFactory = load_object(self._manifest.vendor)
        except (Exception, SystemExit) as error:
            self._error = error

    def make(self, configure: wire.Configure) -> Vendor:
        """The vendor. Raises whatever importing or making it raised."""
        if self._error is not None:
            raise self._error
        config = msgspec.msgpack.decode(configure.config, type=self._manifest.config)
        return self._factory(config, Host(configure.settings.paths))


def run(sock: socket.socket, plugin: str, reference: str) -> int:
    """Import the vendor, take the front's configuration, serve. Returns the exit status."""
    link = FrontLink(sock)
    loading = _Loading(reference)
    try:
        configure = link.receive()
        if not isinstance(configure, wire.Configure):
            link.send(wire.Failed(configure.number, f"not configured yet, got {type(configure).__name__}"))
            return 1
        setup(configure.settings.log, f"{plugin}.probe")
        try:
            vendor = loading.make(configure)
        except (Exception, SystemExit) as error:
            link.send(failed(configure.number, error, f"loading the vendor of {plugin}"))
            return 1
        serve(link, vendor, Files(configure.settings.paths, plugin))
    except Ended:
        pass
    except msgspec.DecodeError as error:
        event(logger, logging.ERROR, "the front sent something unreadable; giving up", error=str(error))
        return 1
    return 0
