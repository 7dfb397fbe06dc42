"""SHA-1 for names, never for security.

hashlib loads OpenSSL, which costs every front and probe half a megabyte of its own and 3 ms; Python's own digest
does not. An interpreter that was built without it still has hashlib.
"""

from __future__ import annotations

try:
    from _sha1 import sha1  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    from hashlib import sha1


def sha1_hex(text: str) -> str:
    """The hexadecimal digest of a text's UTF-8. Raises UnicodeEncodeError for one that has none."""
    return str(sha1(text.encode(), usedforsecurity=False).hexdigest())
