"""Resource names, as the kubelet and the API server take them."""

from __future__ import annotations

import re

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_OTHER = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)

# A quota names the resource `requests.<name>`; that text as a whole must be a qualified name (253 for the domain).
DOMAIN_AT_MOST = 253 - len("requests.")


def full_name(name: str, domain: str) -> str:
    """A name with its domain, if it has none yet."""
    return name if "/" in name else f"{domain}/{name}"


def name_from_path(path: str) -> str:
    """The name of a matched path below /dev: what a name may not hold becomes `_` (`net/tun`: `net_tun`)."""
    return _OTHER.sub("_", path)


def domain_problem(domain: str) -> str:
    """Why this is no domain for resources; empty when it is."""
    if not _DOMAIN.fullmatch(domain):
        return f"{domain!r} is no domain: lower case letters, digits, - and . as in example.org"
    if len(domain) > DOMAIN_AT_MOST:
        return f"the domain has {len(domain)} characters, at most {DOMAIN_AT_MOST} are possible"
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
        return f"{domain!r} belongs to Kubernetes; use a domain of your own"
    if domain.startswith("requests."):
        return "a domain must not start with 'requests.': quotas use that prefix"
    return ""


def resource_problem(full: str) -> str:
    """Why this is no full resource name; empty when it is."""
    domain, _, name = full.partition("/")
    problem = domain_problem(domain)
    if problem:
        return problem
    if len(name) > 63:
        return f"{name!r} has {len(name)} characters, a resource name has at most 63"
    if not _NAME.fullmatch(name):
        return f"{name!r} is no resource name: letters, digits, -, _ and . inside, a letter or digit at both ends"
    return ""
