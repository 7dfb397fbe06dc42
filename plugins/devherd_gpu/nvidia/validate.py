"""What gpu-nvidia.yaml must not say: mistakes that the schema cannot see, one message each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from devherd_gpu.common import naming, selectors, sharing
from devherd_gpu.nvidia.config import Config, Sharing

KeyPath = tuple[str | int, ...]
Problem = tuple[KeyPath, str]

DOMAIN = "nvidia.com"
GPU = f"{DOMAIN}/gpu"
_MIG_PREFIX = f"{DOMAIN}/mig-"
_PROFILE = re.compile(r"(?:[1-7]c\.)?([1-8])g\.\d{1,4}gb(?:[+.-](?:me|gfx)(?:\.all)?)?")
_SLICES = ("1", "2", "3", "4", "6", "7", "8")
_HOOKS = re.compile(r"[a-z0-9-]+")
_PREFIX = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9._-]*")


def validate(config: Config) -> list[Problem]:
    """Key path and message of every mistake."""
    return [*_lists(config), *_answers(config), *_names(config), *_sharing(config), *_system(config)]


def profile_problem(text: str) -> str:
    """Why this is no MIG profile; empty when it may be one (which of them a card has, only the driver knows)."""
    found = _PROFILE.fullmatch(text)
    if found and found[1] in _SLICES:
        return ""
    return f"{text!r} is no MIG profile: write it as nvidia-smi mig -lgip does, 1g.10gb or 1g.10gb+me"


def _lists(config: Config) -> Iterator[Problem]:
    yield from _selectors(config, config.include, ("include",))
    yield from _selectors(config, config.exclude, ("exclude",))
    for place, text in enumerate(config.exclude):
        if text in config.include:
            yield ("exclude", place), f"{text} is in include as well: take it out of one of the two"


def _selectors(config: Config, texts: Sequence[str], at: KeyPath) -> Iterator[Problem]:
    for place, text in enumerate(texts):
        if why := selectors.problem(text):
            yield (*at, place), why
        elif text in texts[:place]:
            yield (*at, place), f"{text} is there twice"
        else:
            yield from _of_mig(config, text, (*at, place))


def _of_mig(config: Config, text: str, at: KeyPath) -> Iterator[Problem]:
    selector = selectors.parse(text)
    exact = selector.kind == "profile" and not set("*?[") & set(selector.pattern)
    if exact and (why := profile_problem(selector.pattern)):
        yield at, why
        return
    partition = selector.kind == "profile" or (selector.kind == "index" and ":" in selector.pattern)
    if config.mig == "none" and (partition or selector.pattern.upper().startswith("MIG-")):
        yield at, f"{text} means MIG devices, and mig: none offers none; write mig: single or mixed"


def _answers(config: Config) -> Iterator[Problem]:
    chosen = config.device_list
    for place, strategy in enumerate(chosen):
        if strategy in chosen[:place]:
            yield ("device_list", place), f"{strategy} is there twice"
    if "envvar" in chosen and "volume-mounts" in chosen:
        yield (
            ("device_list",),
            "envvar and volume-mounts exclude each other: both set NVIDIA_VISIBLE_DEVICES, and only volume-mounts "
            "would count",
        )
    if "driver-mount" in chosen and len(chosen) > 1:
        yield (
            ("device_list",),
            "driver-mount and every other strategy exclude each other: the runtime would add to what is given already",
        )
    if config.pass_device_specs and chosen == ("driver-mount",):
        yield ("pass_device_specs",), "has no effect with driver-mount, which gives the nodes anyway"
    elif config.pass_device_specs and all(strategy.startswith("cdi-") for strategy in chosen):
        yield ("pass_device_specs",), "has no effect with cdi- strategies alone: the CDI specification gives the nodes"
    if config.imex.channels not in ((), (0,)):
        yield ("imex", "channels"), "must be [] or [0]: the driver lets a container use channel 0 only"
    if config.imex.required and not config.imex.channels:
        yield ("imex", "required"), "without channels there is nothing to require; write channels: [0]"
    if not _PREFIX.fullmatch(config.cdi.annotation_prefix):
        yield ("cdi", "annotation_prefix"), "must be a prefix for annotation keys, like cdi.k8s.io/"
    for place, hook in enumerate(config.cdi.disabled_hooks):
        if not _HOOKS.fullmatch(hook):
            yield ("cdi", "disabled_hooks", place), f"{hook!r} is no hook's name: lower case letters and -"


def _names(config: Config) -> Iterator[Problem]:
    for place, rule in enumerate(config.resources):
        yield from _selectors(config, rule.select, ("resources", place, "select"))
        if why := naming.problem(naming.full(rule.name, DOMAIN)):
            yield ("resources", place, "name"), why


def _sharing(config: Config) -> Iterator[Problem]:
    for place, rule in enumerate(config.sharing):
        at: KeyPath = ("sharing", place)
        yield from _selectors(config, rule.select, (*at, "select"))
        if rule.name:
            if why := naming.problem(naming.full(rule.name, DOMAIN)):
                yield (*at, "name"), why
            if rule.rename:
                yield (*at, "rename"), f"name already renames it to {rule.name}: leave one of the two out"
        if rule.resource:
            yield from _shared_resource(config, naming.full(rule.resource, DOMAIN), (*at, "resource"))
        yield from _mps(config, rule, place)


def _shared_resource(config: Config, name: str, at: KeyPath) -> Iterator[Problem]:
    if why := naming.problem(name):
        yield at, why
        return
    named = {naming.full(rule.name, DOMAIN) for rule in config.resources}
    if name in named:
        return
    if name.startswith(_MIG_PREFIX):
        if why := profile_problem(name.removeprefix(_MIG_PREFIX)):
            yield at, why
        elif config.mig == "single":
            yield at, f"with mig: single there is no {name}: MIG devices are {GPU}, share that, or write mig: mixed"
        elif config.mig == "none":
            yield at, f"with mig: none there is no {name}: write mig: mixed"
    elif name != GPU:
        known = ", ".join(sorted({GPU, *named}))
        yield at, f"no rule of resources makes {name}; there are: {known}"


def _mps(config: Config, rule: Sharing, place: int) -> Iterator[Problem]:
    if rule.mode != "mps":
        return
    at: KeyPath = ("sharing", place)
    if rule.one_each is False:
        yield (*at, "one_each"), "with mps a container can have one share only: leave it out, or write true"
    if config.mig == "single":
        yield (*at, "mode"), "MPS does not work on MIG devices, and mig: single offers them: use time-slicing"
    elif config.mig == "mixed" and not rule.resource:
        yield (*at, "mode"), f"MPS does not work on MIG devices: limit this rule to whole GPUs with resource: {GPU}"
    if any(other.mode != rule.mode and _offered_as(other) == _offered_as(rule) for other in config.sharing):
        yield (
            (*at, "mode"),
            f"mps and time-slicing exclude each other under one name, and both offer {_offered_as(rule)}: a pod could "
            "not know which it gets; give one of the two a name",
        )


def _offered_as(rule: Sharing) -> str:
    if rule.name:
        return naming.full(rule.name, DOMAIN)
    base = naming.full(rule.resource or "gpu", DOMAIN)
    return base + sharing.SUFFIX if rule.rename else base


def _system(config: Config) -> Iterator[Problem]:
    if config.driver.discovery not in ("tegra", "wsl"):
        return
    if config.mig != "none":
        yield ("mig",), f"driver.discovery {config.driver.discovery} knows no MIG: write mig: none"
    if config.ids == "index":
        yield ("ids",), f"driver.discovery {config.driver.discovery} has one GPU with a fixed id: write ids: uuid"
