"""Gzip without surprises: unpacked in pieces, and not further than a real trace could need.

Deflate packs at most 1032:1, which only repetition reaches; the traces and programs we have pack 2:1 to 13:1, so
five times that is allowed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import IO

from trackwalker.errors import EvidenceError

MAGIC = b"\x1f\x8b"
_WBITS = 31
_PIECE = 1 << 20
_ALWAYS = 64 << 20  # so much may come out of any file, however small
_RATIO = 60


def unzipped(packed: IO[bytes], name: str) -> Iterator[bytes]:
    """What a gzip file holds; a bomb raises EvidenceError, a cut or damaged one EOFError or zlib.error."""
    size = packed.seek(0, 2)
    packed.seek(0)
    left = max(_ALWAYS, _RATIO * size)
    unpacker = zlib.decompressobj(wbits=_WBITS)
    unfinished = False
    while piece := packed.read(_PIECE):
        while piece:
            out = unpacker.decompress(piece, _PIECE)
            left -= len(out)
            if left < 0:
                raise EvidenceError(f"{name} unpacks to more than {_RATIO} times its size: this is no trace, not read")
            yield out
            unfinished, piece = not unpacker.eof, unpacker.unconsumed_tail or unpacker.unused_data
            if unpacker.eof:  # a file can be several gzip streams, one after the other
                unpacker = zlib.decompressobj(wbits=_WBITS)
    if unfinished:
        raise EOFError("it ends in the middle")
