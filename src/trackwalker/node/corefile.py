"""What a core file says about itself: whether it is one, whether it is whole, which process it was."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

_CORE = 4  # e_type of a core
_NOTE = 4  # p_type of the notes
_PSINFO, _FILES = 3, 0x46494C45
_MOST_HEADERS = 1 << 20
_MOST_NOTES = 1 << 26


@dataclass(frozen=True)
class CoreFile:
    """A core file: the process as it numbered itself, its program, and how long the file has to be."""

    pid: int
    name: str
    program: str  # path of the executable, empty when it is not said
    size: int


def read_core(path: str) -> CoreFile | None:
    """The facts of a 64-bit core file; None for anything else, however it is called."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", head, 16)[0] != _CORE:
                return None
            offset, entry, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
            if count == 0xFFFF:  # more mappings than fit: the first section header has the number
                file.seek(struct.unpack_from("<Q", head, 40)[0])
                count = struct.unpack_from("<I", file.read(64), 44)[0]
            if entry != 56 or count > _MOST_HEADERS:
                return None
            file.seek(offset)
            table = file.read(entry * count)
            end, notes = 0, b""
            for at in range(0, len(table) - 55, 56):
                kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", table, at)
                end = max(end, start + length)
                if kind == _NOTE and not notes and length < _MOST_NOTES:
                    file.seek(start)
                    notes = file.read(length)
    except (OSError, struct.error):
        return None
    pid, name, program = _read_notes(notes)
    return CoreFile(pid, name, program, end)


def _read_notes(notes: bytes) -> tuple[int, str, str]:
    pid, name, files, at = 0, "", [], 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        at += 12 + (name_size + 3) // 4 * 4
        body = notes[at : at + size]
        at += (size + 3) // 4 * 4
        if kind == _PSINFO and len(body) >= 56:
            pid = struct.unpack_from("<i", body, 24)[0]
            name = body[40:56].split(b"\0")[0].decode("utf-8", "replace")
        elif kind == _FILES and len(body) >= 16:
            count = struct.unpack_from("<Q", body)[0]
            files = [os.fsdecode(f) for f in body[16 + 24 * count :].split(b"\0") if f]
    # The program is mapped first; its name has at most 15 letters in the process table, and a thread may rename it.
    same = [f for f in files if name and os.path.basename(f).startswith(name)]
    return pid, name, (same or files or [""])[0]
