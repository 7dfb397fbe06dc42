"""What every command shares: `--config`, `--instance`, `--json`, and the place they lead to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from devherd.cli.output import Out
from devherd.cli.place import Place, find


@dataclass
class App:
    """One command's surroundings. The place is looked up when a command first needs it."""

    out: Out
    config: str | None = None
    instance: str | None = None
    config_given: bool = False
    """Whether --config stood on the command line, not only in the environment."""
    _place: Place | None = None

    @property
    def place(self) -> Place:
        """The devherd this command speaks to. Raises Fault when it is not clear which."""
        if self._place is None:
            self._place = find(self.config, self.instance)
        return self._place

    def look_again(self) -> None:
        """Forget the place: an instance may have come up since."""
        self._place = None


def common(command: Callable[..., int]) -> Callable[..., int]:
    """Adds the shared options to a command, which gets an App as its first argument."""

    @click.option(
        "--config",
        metavar="FILE",
        envvar="DEVHERD_CONFIG",
        callback=_given,
        help="devherd.yaml to use. Default: your running private instance, else /etc/devherd/devherd.yaml.",
    )
    @click.option(
        "--instance", metavar="NAME", callback=_given, help="Private instance to speak to, where several run."
    )
    @json_option
    @functools.wraps(command)
    def wrapped(config: str | None, instance: str | None, as_json: bool, **rest: Any) -> int:
        context = click.get_current_context()
        given = config is not None and context.get_parameter_source("config") is not ParameterSource.ENVIRONMENT
        return command(App(make_out(as_json), config, instance, given), **rest)

    return wrapped


def _given(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """An empty option is a mistake (`--config "$UNSET"`); an empty environment variable counts as none."""
    if value != "":
        return value
    if parameter.name and context.get_parameter_source(parameter.name) is ParameterSource.ENVIRONMENT:
        return None
    raise click.BadParameter("is empty; leave the option out for the default")


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The `--json` option."""
    text = "One JSON document on stdout, nothing else there."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


def make_out(as_json: bool) -> Out:
    """The output for a command; one place, so that it is the same everywhere."""
    return Out(as_json)
