"""Takes out of a capture what identifies people, machines and secrets, and keeps what belongs together together.

A secret (password, token, key) becomes `<redacted>`. What identifies hardware or somebody's workload (serial numbers,
hardware addresses, UUIDs, host, pod and namespace names, IP addresses) becomes a pseudonym of the same form: the same
value gives the same pseudonym everywhere in one capture, and another one in the next, because its key is forgotten.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from devherd.config.problems import Report
from devherd.config.yaml12 import Mapping, Node, Scalar, Sequence, parse

GONE = "<redacted>"
"""In place of a secret; plain text in JSON and in every corner of YAML."""
SHORTEST = 4
"""A shorter value is not looked for in other text: it would hit everything."""

_SECRET = (
    r"pass(?:word|wd|phrase)?|secret|token|credential|api[_-]?key|private[_-]?key|access[_-]?key|auth(?!or)|cookie"
    r"|session|licen[sc]e|encryption[_-]?key|signing[_-]?key"
)
_SECRET_KEY = re.compile(rf"(?i)(?:{_SECRET})")
_PAIR = re.compile(
    rf"""(?im)(["']?\b[\w.-]*(?:{_SECRET})[\w.-]*["']?[ \t]*[:=][ \t]*)("[^"\n]*"|'[^'\n]*'|[^\s,;}}\]"']+)"""
)
_BLOCK = re.compile(
    rf"""(?i)^([ \t]*)(?:- )?["']?[\w.-]*(?:{_SECRET})[\w.-]*["']?[ \t]*[:=][ \t]*(?:[|>][-+0-9]*)?[ \t]*$"""
)
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s:@]*:[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)[ \t]+[A-Za-z0-9+/=._~-]{8,}")
_TOKENS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|\bgithub_pat_\w{20,}|\bgh[pousr]_\w{20,}|\bglpat-[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\bxox[abprs]-[\w-]{10,}|\bhvs\.[\w-]{20,}|\bhf_\w{20,}|\bnvapi-[\w-]{20,}|\bsk-[\w-]{20,}",
    re.DOTALL,
)

_HEX2 = r"[0-9A-Fa-f]{2}"
_UUID = re.compile(
    r"(?<![0-9A-Fa-f])(?<![0-9A-Fa-f]-)[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f-])"
)
# Link-layer addresses: 6 bytes (Ethernet) or 20 (InfiniBand).
_MAC = re.compile(rf"(?<![0-9A-Fa-f:])(?:(?:{_HEX2}:){{19}}|(?:{_HEX2}:){{5}}){_HEX2}(?![0-9A-Fa-f:])")
_MAC_NAME = re.compile(r"\b(enx|wlx|wwx)([0-9a-f]{12})\b")
# InfiniBand: a GUID is four groups, a GID eight of which the last four are a port's GUID.
_GUID = re.compile(r"(?<![0-9A-Fa-f:])(?:(?:[0-9A-Fa-f]{4}:){7}|(?:[0-9A-Fa-f]{4}:){3})[0-9A-Fa-f]{4}(?![0-9A-Fa-f:])")
_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")


class Redactor:
    """One capture's pseudonyms. First `learn` everything, then redact everything. `enabled` false: change nothing."""

    def __init__(self, enabled: bool = True, key: bytes = b"") -> None:
        self.enabled = enabled
        self.counts: Counter[str] = Counter()
        """How many replacements of each kind were made."""
        self._key = key or os.urandom(32)
        self._secrets: set[str] = set()
        self._names: dict[str, str] = {}
        self._secret_words: re.Pattern[str] | None = None
        self._name_words: re.Pattern[str] | None = None

    # Learning

    def learn_serial(self, value: str) -> None:
        """A serial number: replaced wherever it stands, in paths and links too."""
        value = value.strip()
        # `0000000000` and the like identify nothing.
        if len(value) >= SHORTEST and len(set(value)) > 1 and value.lower() not in ("unknown", "none", "n/a"):
            self._add_name(value, "SN" + self._digest(value)[:8].upper())

    def learn_name(self, value: str, kind: str) -> None:
        """A name somebody gave (a host, a pod, a namespace); `kind` starts the pseudonym."""
        if len(value) >= SHORTEST and value not in ("default", "localhost", "kube-system", "node"):
            self._add_name(value, f"{kind}-{self._digest(value)[:6]}")

    def learn_owner(self, owner: str) -> None:
        """Who holds a device: `namespace/pod/container`."""
        namespace, _, rest = owner.partition("/")
        pod, _, container = rest.partition("/")
        if pod:
            # The whole, so that short names are replaced where nothing else can be meant.
            parts = ((namespace, "ns"), (pod, "pod"), (container, "c"))
            made = [name if name == "default" else f"{kind}-{self._digest(name)[:6]}" for name, kind in parts if name]
            self._add_name(owner, "/".join(made))
            self.learn_name(namespace, "ns")
            self.learn_name(pod, "pod")

    def learn_yaml(self, text: str) -> None:
        """Whatever stands under a secret's key in a configuration, to be found again in logs and statuses."""
        node = parse(text, Report("capture"))
        if node is not None:
            self._learn_node(node, secret=False)

    def learn_json(self, value: Any, secret: bool = False) -> None:
        """The same for data; `attributes` that are called serial are learnt as such."""
        if isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, str) and re.search(r"(?i)serial", str(key)):
                    self.learn_serial(item)
                self.learn_json(item, secret or _is_secret_key(str(key)))
        elif isinstance(value, list | tuple):
            for item in value:
                self.learn_json(item, secret)
        elif secret and isinstance(value, str):
            self._learn_secret(value)

    def _learn_node(self, node: Node, secret: bool) -> None:
        if isinstance(node, Mapping):
            texts = {pair.key.text: pair.value.text for pair in node.pairs if isinstance(pair.value, Scalar)}
            named = _is_secret_key(texts.get("name", "")) and "value" in texts
            for pair in node.pairs:
                own = _is_secret_key(pair.key.text) or (named and pair.key.text == "value")
                self._learn_node(pair.value, secret or own)
        elif isinstance(node, Sequence):
            for item in node.items:
                self._learn_node(item, secret)
        elif isinstance(node, Scalar) and secret:
            self._learn_secret(node.text)

    def _learn_secret(self, value: str) -> None:
        for piece in (value, *value.splitlines()):
            if len(piece.strip()) >= SHORTEST and piece.strip().lower() not in ("true", "false", "null"):
                self._secrets.add(piece.strip())
                self._secret_words = None

    def _add_name(self, value: str, pseudonym: str) -> None:
        self._names.setdefault(value, pseudonym)
        self._name_words = None

    # Redacting

    def text(self, text: str) -> str:
        """Any text: a log, an error, a path, an attribute."""
        if not self.enabled or not text:
            return text
        if self._secrets:
            text = self._sub(self._secret_pattern(), "secret", lambda _: GONE, text)
        text = self._sub(_TOKENS, "secret", lambda _: GONE, text)
        text = self._sub(_URL, "secret", lambda found: f"{found[1]}{GONE}@", text)
        text = self._sub(_BEARER, "secret", lambda found: f"{found[1]} {GONE}", text)
        text = self._sub(_PAIR, "secret", _without_value, text)
        text = self._sub(_UUID, "uuid", lambda found: self._like(found[0]), text)
        text = self._sub(_MAC, "hardware address", lambda found: self._mac(found[0]), text)
        text = self._sub(_MAC_NAME, "hardware address", lambda found: found[1] + self._like(found[2]), text)
        text = self._sub(_GUID, "hardware address", lambda found: self._guid(found[0]), text)
        text = self._sub(_IPV6, "network address", lambda found: self._ip(found[0]), text)
        text = self._sub(_IPV4, "network address", lambda found: self._ip(found[0]), text)
        if self._names:
            text = self._sub(self._name_pattern(), "name", lambda found: self._names[found[0]], text)
        return text

    def yaml(self, text: str) -> str:
        """A configuration, also one with mistakes in it: what is indented under a secret's key goes as a whole."""
        if not self.enabled:
            return text
        lines: list[str] = []
        under: int | None = None
        for line in text.splitlines():
            indent = len(line) - len(line.lstrip())
            if under is not None and (not line.strip() or indent > under):
                self.counts["secret"] += bool(line.strip())
                lines.append(line[:indent] + GONE if line.strip() else line)
                continue
            found = _BLOCK.match(line)
            under = len(found[1]) if found else None
            lines.append(line)
        return self.text("\n".join(lines) + ("\n" if text.endswith("\n") else ""))

    def json(self, value: Any) -> Any:
        """The same for data, by key where there is one."""
        if not self.enabled:
            return value
        if isinstance(value, dict):
            return {self.text(str(key)): self._field(str(key), item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _field(self, key: str, value: Any) -> Any:
        if _is_secret_key(key) and isinstance(value, str | int | float) and not isinstance(value, bool) and value:
            self.counts["secret"] += 1
            return GONE
        return self.json(value)

    def _sub(self, pattern: re.Pattern[str], kind: str, new: Callable[[re.Match[str]], str], text: str) -> str:
        def replaced(found: re.Match[str]) -> str:
            made = new(found)
            self.counts[kind] += made != found[0]
            return made

        return pattern.sub(replaced, text)

    def _secret_pattern(self) -> re.Pattern[str]:
        if self._secret_words is None:
            self._secret_words = re.compile("|".join(map(re.escape, _longest_first(self._secrets))))
        return self._secret_words

    def _name_pattern(self) -> re.Pattern[str]:
        if self._name_words is None:
            words = "|".join(map(re.escape, _longest_first(self._names)))
            self._name_words = re.compile(rf"(?<![0-9A-Za-z])(?:{words})(?![0-9A-Za-z])")
        return self._name_words

    # Pseudonyms

    def _digest(self, value: str) -> str:
        return hmac.new(self._key, value.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()

    def _like(self, value: str) -> str:
        """Other hex digits in the same places; nothing but zeros stays, it means `none`."""
        if not value.strip("0-:"):
            return value
        digits = iter(self._digest(value.lower()))
        made = "".join(next(digits) if char in "0123456789abcdefABCDEF" else char for char in value)
        return made.upper() if value.isupper() else made

    def _mac(self, value: str) -> str:
        if len(value) > 17:  # InfiniBand: flags and queue pair, the subnet's prefix, the port's GUID
            guid = value[36:].replace(":", "")
            made = self._like(":".join(guid[i : i + 4] for i in range(0, 16, 4))).replace(":", "")
            return value[:36] + ":".join(made[i : i + 2] for i in range(0, 16, 2))
        if set(value.lower()) <= {"f", ":"}:
            return value
        made = self._like(value)
        return made if made == value else "02" + made[2:]

    def _guid(self, value: str) -> str:
        if len(value) <= 19:
            return self._like(value)
        prefix, guid = value[:19], value[20:]
        return f"{prefix if prefix.lower().startswith('fe80:') else self._like(prefix)}:{self._like(guid)}"

    def _ip(self, value: str) -> str:
        if _GUID.fullmatch(value):
            return value  # a GID; its port's GUID has its pseudonym by now
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            return value
        if address.is_loopback or address.is_unspecified:
            return value
        digest = self._digest(value)
        if address.version == 4:
            return "198.18." + ".".join(str(int(digest[i : i + 2], 16)) for i in (0, 2))  # for benchmarks, RFC 2544
        return f"2001:db8::{digest[:4]}:{digest[4:8]}"  # for documentation, RFC 3849


def _is_secret_key(key: str) -> bool:
    return bool(_SECRET_KEY.search(key))


def _without_value(found: re.Match[str]) -> str:
    value = found[2]
    if GONE in value or value.lower() in ("true", "false", "null", "none", "{", "[", "|", ">"):
        return found[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{found[1]}{quote}{GONE}{quote}" if value.strip("\"'") else found[0]


def _longest_first(words: Iterable[str]) -> list[str]:
    return sorted(words, key=lambda word: (-len(word), word))
