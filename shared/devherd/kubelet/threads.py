"""gRPC's own threads: started once, on purpose, so that they sleep well.

It keeps a timer thread and a pool (more of them the more cores a machine has) that wake several times a second
though nothing is to be done; together they would use more than the rest of an idle front.
"""

from __future__ import annotations

import contextlib

import grpc.aio

from devherd.process import timer_slack

SLACK = 0.05
"""Seconds by which their timers may be late, so that they share wake-ups. What arrives on a socket wakes at once."""


async def start_threads() -> None:
    """Have gRPC start its threads, each with that slack; threads inherit it from the one that starts them."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(timer_slack(SLACK))
        await grpc.aio.server().stop(None)
