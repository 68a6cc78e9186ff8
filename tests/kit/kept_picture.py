"""A picture that is kept in the repository, with a digest of what it shows in it: so it can be told when it is old."""

from __future__ import annotations

import hashlib
import html
import re
import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
WORD = b"page"
"""The keyword of the chunk with the digest (PNG, Third Edition, 11.3.3.2: tEXt)."""
HEADER = len(SIGNATURE) + 4 + 4 + 13 + 4
"""Bytes up to the end of IHDR, the first chunk, which has 13 bytes of data."""


def shown(page: str) -> str:
    """A digest of what the page's first parts say, of what their pictures label, and of the style.

    Neither places nor fonts are in it: they are others with another matplotlib or browser.
    """
    upper = page[: page.index('<section id="figures"')]
    style, body = re.search(r"<style>(.*?)</style>", upper, re.DOTALL), upper[upper.index("<body") :]
    assert style
    words = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())
    return hashlib.sha256(f"{style[1]}\n{words}".encode()).hexdigest()


def marked(png: bytes, digest: str) -> bytes:
    """The picture with the digest in it."""
    data = WORD + b"\0" + digest.encode()
    chunk = struct.pack(">I", len(data)) + b"tEXt" + data + struct.pack(">I", zlib.crc32(b"tEXt" + data))
    return png[:HEADER] + chunk + png[HEADER:]


def mark(png: bytes) -> str | None:
    """The digest in the picture, if there is one."""
    found = re.search(rb"tEXt" + WORD + rb"\0([0-9a-f]{64})", png)
    return found[1].decode() if found else None


def size(png: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    assert png.startswith(SIGNATURE)
    width, height = struct.unpack(">II", png[16:24])
    return width, height
