"""One look at a folder by a process of its own: write, read back, time it, measure the space; then leave no file.

It runs from its source text and imports nothing of ours: a server that hangs holds this process, never the agent.
Arguments: the folder, and the name of the file to make. One JSON object on standard output.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time

_TEXT = b"trackwalker\n" * 341  # about a page


def look(folder: str, name: str) -> dict[str, object]:
    """What was found; `error` names the operation that failed."""
    out: dict[str, object] = {}
    step = "stat"
    path = os.path.join(folder, name)
    try:
        space = os.statvfs(folder)
        out.update(free=space.f_bavail * space.f_frsize, size=space.f_blocks * space.f_frsize)
        # Some file systems count no inodes: they say 0 of 0.
        out.update(inodes_free=space.f_favail if space.f_files else None)
        step = "create"
        begin, wall = time.perf_counter(), time.time()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            step = "write"
            os.write(fd, _TEXT)
            os.fsync(fd)
            after = time.time()
            out["write_s"] = round(time.perf_counter() - begin, 6)
            step = "read"
            # The server's clock made this time (on NFS): between `wall` and `after` by ours, if the two agree.
            stamp = os.fstat(fd).st_mtime
            out.update(
                offset_s=round((wall + after) / 2 - stamp, 6), offset_error_s=round((after - wall) / 2 + 0.01, 6)
            )
            begin = time.perf_counter()
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # from the server, not from our own cache
            if os.pread(fd, 2 * len(_TEXT), 0) != _TEXT:
                raise OSError(errno.EIO, "what was read is not what was written")
            out["read_s"] = round(time.perf_counter() - begin, 6)
        finally:
            os.close(fd)
            os.unlink(path)
    except OSError as error:
        out["error"] = f"{step}: {error.strerror or error}"
    return out


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look(sys.argv[1], sys.argv[2])) + "\n")
