"""Is a front registered with this kubelet, and if not, whose fault is it? Pure rules over its status document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from devherd_watcher.owner import Identity

FINE = frozenset({"registered", "unverified"})
"""States of a resource whose stream is open."""
SETTLED = frozenset({"refused", "taken"})
"""States that neither a signal nor a restart heals: a configuration error, another server. The front shows them."""

FRONT, KUBELET, NOBODY = "front", "kubelet", ""
"""Whom to blame."""


class Verdict(NamedTuple):
    """`served`: at least one resource's stream is open on this kubelet, which proves that the kubelet works."""

    ok: bool
    why: str = ""
    blame: str = NOBODY
    served: bool = False


def silent(why: str) -> Verdict:
    """Of a front that gave no status. The pulse decides about it, not the registration."""
    return Verdict(False, f"no answer: {why}", NOBODY)


def judge(status: Mapping[str, Any], kubelet: Identity) -> Verdict:
    """Judge one front's status."""
    seen = status.get("kubelet")
    if not isinstance(seen, Mapping) or not _same(seen, kubelet):
        pid = seen.get("pid") if isinstance(seen, Mapping) else None
        return Verdict(False, f"it has not noticed the kubelet {kubelet.pid} (sees {pid or 'none'})", FRONT)
    rows = [row for row in status.get("resources") or () if isinstance(row, Mapping)]
    served = any(row.get("state") in FINE for row in rows)
    late = [row for row in rows if row.get("state") not in FINE | SETTLED and not row.get("draining")]
    if not late:
        return Verdict(True, served=served)
    texts = [f"{row.get('name')} is {row.get('state')}" + _because(row) for row in late]
    return Verdict(False, "; ".join(texts)[:1000], KUBELET, served)


def may_restart(name: str, verdicts: Mapping[str, Verdict]) -> str:
    """Why a front that is not registered must not be restarted; empty: it may be.

    A front that does not see the kubelet is wrong by itself. One that sees it and is not registered may be right
    and the kubelet sick, unless somebody else is registered there. All at once is never the fronts' fault.
    """
    verdict = verdicts[name]
    others = [other for key, other in verdicts.items() if key != name]
    if others and not any(other.ok for other in others):
        return "no front is registered: that is not this front's fault"
    if verdict.blame == KUBELET and not any(other.served for other in others):
        return "no other front proves that the kubelet works"
    if verdict.blame == NOBODY:
        return "it gives no status"
    return ""


def _same(seen: Mapping[str, Any], kubelet: Identity) -> bool:
    if seen.get("state") != "up" or seen.get("pid") != kubelet.pid:
        return False
    # Without a visible process (another pid namespace) both sides make do with something else.
    return not (kubelet.pid and kubelet.start_time and seen.get("start_time")) or (
        seen.get("start_time") == kubelet.start_time
    )


def _because(row: Mapping[str, Any]) -> str:
    return f" ({row['error']})" if row.get("error") else ""
