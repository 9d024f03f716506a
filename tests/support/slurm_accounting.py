"""A real slurmdbd with its own MariaDB for a test's cluster: sacct and requeue history as a site has them."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import subprocess
from pathlib import Path

_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
PROGRAMS = ("mariadbd", "slurmdbd", "sacctmgr")
_TABLES = ("mysql_system_tables", "mysql_system_tables_data")  # what mariadb-install-db would feed it

# Small, and without waiting for the disk: nobody needs these tables after a power cut.
_SMALL = (
    "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync", "--skip-innodb-doublewrite", "--sync-frm=OFF", "--innodb-file-per-table=OFF",
)  # fmt: skip

_DBD = """
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
LogFile={dir}/slurmdbd.log
PidFile={dir}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct
"""


def missing() -> str:
    """Why there can be no accounting here; empty when there can."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SBIN])
    absent = [p for p in PROGRAMS if shutil.which(p, path=path) is None]
    return (
        f"no slurmdbd here ({', '.join(absent)} missing): apt-get install slurmdbd mariadb-server-core"
        if absent
        else ""
    )


def data_of(folder: Path) -> Path:
    """Where the database lies: in memory where there is room, because a busy disk makes its tables in minutes."""
    memory = Path("/dev/shm")
    return memory / f"{folder.name}-sql" if memory.is_dir() else folder / "mysql"


def database_argv(folder: Path, port: int, password: str, env: dict[str, str]) -> list[str]:
    """The command of a MariaDB that knows one user and listens to this machine alone; its files are made first."""
    data = data_of(folder)
    if not data.exists():
        data.mkdir(mode=0o700)
        tables = "".join(Path(f"/usr/share/mysql/{name}.sql").read_text() for name in _TABLES)
        subprocess.run(
            ["mariadbd", "--no-defaults", "--bootstrap", f"--datadir={data}", f"--user={getpass.getuser()}", *_SMALL],
            input=f"CREATE DATABASE mysql;\nUSE mysql;\n{tables}", text=True, env=env, capture_output=True, check=True,
            timeout=60,
        )  # fmt: skip
    init = folder / "init.sql"
    init.touch(mode=0o600)
    init.write_text(
        "CREATE DATABASE IF NOT EXISTS slurm_acct;\n"
        f"CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1';\n"
    )
    return [
        "mariadbd", "--no-defaults", f"--user={getpass.getuser()}", f"--datadir={data}", f"--socket={folder}/sql.sock",
        f"--pid-file={folder}/sql.pid", "--bind-address=127.0.0.1", f"--port={port}", f"--init-file={init}",
        "--skip-name-resolve", "--innodb-lock-wait-timeout=900", "--performance-schema=OFF", *_SMALL,
    ]  # fmt: skip


def configure(folder: Path, host: str, port: int, sql_port: int) -> str:
    """slurmdbd's own settings; its configuration lies where slurm.conf does. Returns the database's password."""
    password = secrets.token_hex(8)
    conf = folder / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(
        _DBD.format(dir=folder, host=host, port=port, user=getpass.getuser(), sql_port=sql_port, password=password)
    )
    return password


def controller_conf(folder: Path, port: int) -> str:
    """The lines of slurm.conf that name it, and the way to it."""
    return (
        "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
        f"AccountingStoragePort={port}\nAccountingStoragePass={folder}/munge/socket"
    )
