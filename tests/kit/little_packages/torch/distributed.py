"""A process group of which only rank and size are known."""

from __future__ import annotations

_joined: list[tuple[int, int]] = []


def join(rank: int, world: int) -> None:
    _joined.append((rank, world))


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return bool(_joined)


def get_rank() -> int:
    return _joined[0][0]


def get_world_size() -> int:
    return _joined[0][1]
