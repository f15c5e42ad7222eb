from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Optional, TypeVar

# A longer TTL is a mistake, and overflows in the server.
MAX_TTL_MS = 36_525 * 86_400_000
_DIGEST_LENGTH = 40


@dataclass(frozen=True)
class Unbounded:
    """The key does not expire."""


@dataclass(frozen=True)
class Fixed:
    """The key always has the same TTL."""

    ttl_ms: int


@dataclass(frozen=True)
class Default:
    """The key has this TTL unless the writer chooses another."""

    ttl_ms: int
    at_most_ms: Optional[int]


@dataclass(frozen=True)
class Renewable:
    """The TTL is extended while the key is in use."""

    ttl_ms: int
    at_most_ms: Optional[int]


@dataclass(frozen=True)
class Ranged:
    """The writer chooses the TTL between bounds."""

    min_ms: int
    max_ms: Optional[int]


@dataclass(frozen=True)
class Given:
    """The data of the writer determines the TTL, plus a grace period."""

    plus_ms: int


L = TypeVar("L", Unbounded, Fixed, Default, Renewable, Ranged, Given)


@dataclass(frozen=True)
class Key(Generic[L]):
    """A key in both layouts, with its lifetime."""

    entry: str
    plain: str
    cluster: str
    lifetime: L

    def ttl_ms(self, chosen: Optional[int] = None) -> Optional[int]:
        """The TTL to write the key with; None: without one. Raises ValueError if the catalog does not allow it."""
        rule = self.lifetime
        if isinstance(rule, (Unbounded, Fixed)):
            if chosen is not None:
                raise ValueError(f"{self.entry} has no TTL to choose")
            return rule.ttl_ms if isinstance(rule, Fixed) else None
        if isinstance(rule, (Default, Renewable)):
            least, most = 1, rule.at_most_ms
            chosen = rule.ttl_ms if chosen is None else chosen
        elif chosen is None:
            raise ValueError(f"{self.entry} needs a TTL that the writer chooses")
        elif isinstance(rule, Ranged):
            least, most = rule.min_ms, rule.max_ms
        else:
            least, most = max(1, rule.plus_ms), None
            chosen += rule.plus_ms
        most = MAX_TTL_MS if most is None else most
        if not least <= chosen <= most:
            raise ValueError(f"a TTL of {chosen} ms is not allowed for {self.entry}: use {least} to {most}")
        return chosen


@dataclass(frozen=True)
class Channel:
    """A channel in both layouts."""

    entry: str
    plain: str
    cluster: str


class ClosedSet(Enum):
    """An identifier from a closed set, written as it is."""

    @property
    def written(self) -> str:
        return self.value


class Identifier:
    """An identifier, encoded so that it stays in its segment."""

    __slots__ = ("written",)
    KIND = ""
    MAX_BYTES = 80
    HASHED = False
    SENSITIVE = False
    RESERVED: frozenset = frozenset()
    SEPARATORS = ""

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError(f"{self.KIND} is empty: it needs at least one character")
        self.written = self._readable(text) or self._hash(text)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.written == self.written  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.KIND, self.written))

    def __repr__(self) -> str:
        return f"{self.KIND}({self.written})"

    @classmethod
    def _readable(cls, text: str) -> Optional[str]:
        raw = text.encode("utf-8")
        if cls.HASHED or len(raw) > cls.MAX_BYTES:
            return None
        ambiguous = text in cls.RESERVED or _is_hashed(text)
        escaped = b":{}% " + cls.SEPARATORS.encode("ascii")
        parts = [
            f"%{byte:02X}"
            if byte < 0x20 or byte >= 0x7F or byte in escaped or (ambiguous and position == 0)
            else chr(byte)
            for position, byte in enumerate(raw)
        ]
        written = "".join(parts)
        return written if len(written) <= cls.MAX_BYTES else None

    @classmethod
    def _hash(cls, text: str) -> str:
        room = 0 if cls.SENSITIVE else cls.MAX_BYTES - _DIGEST_LENGTH - 1
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()[:_DIGEST_LENGTH]
        return f"{_slug(text, room)}~{digest}"


def _slug(text: str, room: int) -> str:
    slug = ""
    # Letter by letter: the lower case of some letters depends on their neighbours.
    for character in (lower for letter in text for lower in letter.lower()):
        if len(slug) >= room:
            break
        if "a" <= character <= "z" or "0" <= character <= "9":
            slug += character
        elif slug and not slug.endswith("-"):
            slug += "-"
    return slug.rstrip("-")


def _is_hashed(text: str) -> bool:
    slug, separator, digest = text.rpartition("~")
    return (
        separator == "~"
        and len(digest) == _DIGEST_LENGTH
        and all(c in "0123456789abcdef" for c in digest)
        and all("a" <= c <= "z" or "0" <= c <= "9" or c == "-" for c in slug)
        and not (slug.startswith("-") or slug.endswith("-") or "--" in slug)
    )
