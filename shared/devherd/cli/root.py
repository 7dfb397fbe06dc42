"""The commands of `devherd`, and what happens to errors."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from devherd import __version__
from devherd.cli.exits import ERROR, INTERRUPTED, OK, Fault
from devherd.cli.output import Out, discard, flush

_COMMANDS = {
    "run": "devherd.cli.run:run",
    "status": "devherd.cli.status:status",
    "devices": "devherd.cli.devices:devices",
    "explain": "devherd.cli.explain:explain",
    "events": "devherd.cli.events:events",
    "top": "devherd.cli.top:top",
    "verify": "devherd.cli.verify:verify",
    "wait": "devherd.cli.wait:wait",
    "detach": "devherd.cli.detach:detach",
    "attach": "devherd.cli.detach:attach",
    "config": "devherd.cli.config:config",
    "simulate": "devherd.cli.simulate:simulate",
    "doctor": "devherd.cli.doctor:doctor",
    "capture": "devherd.cli.capture:capture",
}
"""In the order a newcomer meets them."""

_HELP = """\
Keeps a Kubernetes node's devices registered with the kubelet.

\b
Start here:
  devherd run --simulate      supervisord, plugins, a kubelet and a node, all simulated
  devherd status              what runs, and what the kubelet has
  devherd devices             every device: healthy or not, why, and who holds it
  devherd explain /dev/fuse   why something is offered, or why not
  devherd events              what happened, in time order
  devherd doctor              what is wrong, and what to do

\b
Exit codes: 0 ok, 1 error, 2 wrong usage, 3 not ready, 4 in use, 5 timeout,
130 interrupted before it was done (Ctrl-C is how `run`, `top` and `events -f` end: 0).
"""


class _Lazy(click.Group):
    """Imports a command's module when it is used: `devherd status` must not pay for the simulator."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with the whole first sentence of each."""
        with formatter.section("Commands"):
            found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
            formatter.write_dl([(name, command.get_short_help_str(limit=200)) for name, command in found if command])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "help":
            return _help
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.command("help", hidden=True)
@click.argument("commands", nargs=-1)
@click.pass_context
def _help(context: click.Context, commands: tuple[str, ...]) -> None:
    """The help of a command: `devherd help simulate pod`."""
    arguments = [*commands, "--help"]
    cli.main(args=arguments, prog_name="devherd", standalone_mode=False)


@click.group(cls=_Lazy, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="devherd %(version)s")
def cli() -> None:
    """Root of the commands; its help is _HELP."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. No exception leaves it."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not _streams():
        return ERROR
    try:
        result = cli.main(args=argv, prog_name="devherd", standalone_mode=False)
        flush(sys.stdout)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Fault as fault:
        Out(_wants_json(argv)).fault(fault)
        return fault.code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of something that goes on for ever has seen enough.
        discard(sys.stdout)
        return OK
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _unexpected(error, argv)
        where = f"{error.filename}: " if error.filename else ""
        Out(_wants_json(argv)).fault(Fault(f"{where}{error.strerror}", "Make room there, then try again."))
        return ERROR
    except Exception as error:
        return _unexpected(error, argv)
    return _code(result)


def _streams() -> bool:
    """Whether there is a stdout. A closed stderr is taken for one that nobody reads."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the life of the process
    if sys.stdout is None:
        print("error: stdout is closed, there is nowhere to write to", file=sys.stderr)
    return sys.stdout is not None


def _code(result: Any) -> int:
    return result if isinstance(result, int) else OK


def _wants_json(argv: Sequence[str]) -> bool:
    return "--json" in argv


def _unexpected(error: Exception, argv: Sequence[str]) -> int:
    if os.environ.get("DEVHERD_DEBUG"):
        raise error
    text = f"{type(error).__name__}: {error}"
    hint = "This is a mistake in devherd. DEVHERD_DEBUG=1 shows where it happened; please report it."
    Out(_wants_json(argv)).fault(Fault(text, hint))
    return ERROR
