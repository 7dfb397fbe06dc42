"""Node labels about Intel GPUs, named as Intel's rules for Node Feature Discovery name them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from devherd_gpu.intel.cards import Card

_PREFIX = "gpu.intel.com/"
_PRODUCTS = {"0bda": "Max_1100", "0bd5": "Max_1550", "56c0": "Flex_170", "56c1": "Flex_140"}
_FAMILIES = {
    "Max_Series": frozenset(("0bda", "0bd5", "0bd9", "0bdb", "0bd7", "0bd6", "0bd0")),
    "Flex_Series": frozenset(("56c0", "56c1")),
    "A_Series": frozenset(
        (
            *("5690", "5691", "5692", "5693", "5694", "5695", "5696", "5697", "56a0", "56a1", "56a3", "56a4", "56a5"),
            *("56a6", "56b0", "56b1", "56b2", "56b3"),
        )
    ),
}


def labels(cards: Iterable[Card]) -> dict[str, str]:
    """`device-id.<class>-<device>.present` and `.count`; `product`, `family` and `device.count` where all cards agree.

    Intel's rules write one product over the other on a mixed node; here it has none.
    """
    cards = tuple(cards)
    counts = Counter((card.class_id, card.device_id) for card in cards)
    found: dict[str, str] = {}
    for (of_class, device), count in sorted(counts.items()):
        place = f"{_PREFIX}device-id.{of_class}-{device}"
        found |= {f"{place}.present": "true", f"{place}.count": str(count)}
    products = {_PRODUCTS.get(card.device_id, "") for card in cards}
    families = {_family(card.device_id) for card in cards}
    if len(products) == 1 and (product := products.pop()):
        found |= {f"{_PREFIX}product": product, f"{_PREFIX}device.count": str(len(cards))}
    if len(families) == 1 and (family := families.pop()):
        found[f"{_PREFIX}family"] = family
    return found


def _family(device: str) -> str:
    return next((name for name, devices in _FAMILIES.items() if device in devices), "")
