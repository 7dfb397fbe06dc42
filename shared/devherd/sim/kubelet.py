"""The simulated kubelet as a program: `python -I -m devherd.sim.kubelet --device-plugins DIR ...`.

SIGTERM and SIGKILL end it alike: at once, connections cut, `kubelet.sock` left behind, as the real one leaves it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from devherd.sim.core import Kubelet
from devherd.sim.operations import Operations
from devherd.sim.options import Options, changed
from devherd.sim.places import OPTIONS, NodeRoot, Places
from devherd.sim.sockets import StartError

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
REQUEST_LIMIT = 1 << 20


def parse(argv: Sequence[str]) -> tuple[Places, Options]:
    """Read the command line and the options that earlier `set` requests left. Raises SystemExit, as argparse does."""
    parser = argparse.ArgumentParser(prog="devherd.sim.kubelet", description="A simulated kubelet.")
    parser.add_argument("--device-plugins", required=True, metavar="DIR", help="device plugin folder")
    parser.add_argument("--pod-resources", required=True, metavar="SOCK", help="PodResources socket")
    parser.add_argument("--state", required=True, metavar="DIR", help="pods, containers and options")
    parser.add_argument("--control", required=True, metavar="SOCK", help="control socket, JSON lines")
    parser.add_argument("--grace", type=float, metavar="SECONDS", help="short for --set grace=SECONDS")
    parser.add_argument("--root", default="/", metavar="DIR", help="node root")
    parser.add_argument("--dev", metavar="DIR", help="device nodes (default ROOT/dev)")
    parser.add_argument("--sys", metavar="DIR", help="sysfs (default ROOT/sys)")
    parser.add_argument("--rdev-table", default="", metavar="FILE", help="device numbers of plain files")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="any option")
    args = parser.parse_args(argv)
    changes: dict[str, Any] = {}
    path = os.path.join(args.state, OPTIONS)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            changes.update(json.load(file))
    if args.grace is not None:
        changes["grace"] = args.grace
    for item in args.set:
        key, _, value = item.partition("=")
        changes[key] = _value(value)
    try:
        options = changed(Options(), changes)
    except ValueError as error:
        parser.error(str(error))
    base = args.root.rstrip("/")
    node = NodeRoot(args.root, args.dev or base + "/dev", args.sys or base + "/sys", args.rdev_table)
    return Places(args.device_plugins, args.pod_resources, args.state, args.control, node), options


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def serve_control(path: str, handler: Handler) -> asyncio.Server:
    """JSON line in, JSON line out, any number of requests a connection."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    request = json.loads(line)
                    reply = await handler(request) if isinstance(request, dict) else {"error": "not a JSON object"}
                except ValueError as error:
                    reply = {"error": f"not JSON: {error}"}
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass
        finally:
            writer.close()

    if os.path.exists(path):
        os.unlink(path)
    return await asyncio.start_unix_server(client, path, limit=REQUEST_LIMIT)


async def serve(places: Places, options: Options) -> None:
    """Run until a signal, or until the start failed; never returns."""
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, os._exit, 0)
    os.makedirs(places.state, exist_ok=True)
    kubelet = Kubelet(places, options)
    control = await serve_control(places.control, Operations(kubelet).handle)
    try:
        await kubelet.start()
    except StartError as error:
        print(f"failed to start the kubelet: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    async with control:
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    places, options = parse(sys.argv[1:] if argv is None else argv)
    asyncio.run(serve(places, options))


if __name__ == "__main__":
    main()
