"""What kernel log lines mean: an ordered table, the first class with a pattern that matches is the line's.

Each pattern picks the one line that a kind of event always writes, so that a count of lines is a count of events;
lines that drivers write when all is well (start-up, links that come up) must match nothing.
"""

from __future__ import annotations

import re

# Class: rows of a word that the line must hold (cheap to look for; most lines have none) and the pattern to match.
CLASSES: dict[str, tuple[tuple[str, str], ...]] = {
    "xid": (("Xid (", r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+)"),),
    "nvlink": (
        ("SXid (", r"nvidia-nvswitch\d+: SXid \("),
        ("NVLink", r"NVRM: .*NVLink.*(?:error|fail|fatal|down)"),
        ("nvidia-nvlink: ", r"(?:error|fail)"),
    ),
    "gpu_amd": (
        ("amdgpu", r"\b[Rr]ing \S+ (?:timeout|reset failed)"),
        ("amdgpu", r"GPU reset begin|GPU reset\(\d+\) failed|GPU recovery failed|device lost from bus"),
        ("amdgpu", r"hardware errors? detected(?! in total)|poison (?:is )?(?:consum|creat)"),
        ("amdgpu", r"page fault \(|[Ff]atal error"),
        ("amdgpu", r"failed to respond to|RAS.*\bbad page|RMA threshold|\*ERROR\*(?! Process information)"),
        ("kfd kfd: ", r"evict.* failed|reset|hang|poison"),
    ),
    "aer": (
        ("PCIe Bus Error", r"severity="),
        ("AER: ", r"device recovery failed|can't recover"),
        ("DPC: ", r"containment event"),
    ),
    "mce": (
        ("[Hardware Error]", r"CPU \d+: Machine Check|Machine check events logged|event severity:"),
        ("EDAC MC", r"EDAC MC\d+: \d+ (?:CE|UE)\b"),
        ("Memory failure: ", r"0x"),
    ),
    "hung_task": ((" blocked ", r"task .+ blocked (?:in I/O wait )?for more than \d+ seconds"),),
    "soft_lockup": (
        ("soft lockup", r"soft lockup - CPU"),
        ("ard LOCKUP", r"[Hh]ard LOCKUP"),
        ("rcu", r"self-detected stall|detected stalls"),
    ),
    "oom": (("ut of memory", r"[Oo]ut of memory(?: \([^)]*\))?: Kill(?:ed)? process"),),
    "nic_reset": (
        ("NETDEV WATCHDOG", r"transmit queue \d+ timed out"),
        ("mlx5_core", r"health compromised|[Ff]atal error|health recovery|[Ff]irmware (?:fatal|reset)"),
        ("mlx5_core", r"TX timeout detected|Will cause a leak"),
        ("bnxt_en", r"TX timeout detected|[Ff]irmware (?:fatal|reset|unresponsive|heartbeat)|FW (?:fatal|reset)"),
        ("ionic", r"FW heartbeat stalled|FW [Dd]own|FW is down|[Ff]irmware (?:down|stopped)|Resetting"),
        ("eset", r"\b(?:ice|i40e|ixgbe|ena) .*(?:[Rr]eset requested|Trigger reset)"),
    ),
    "link_flap": (
        ("ink ", r"[Ll]ink (?:is )?(?:[Dd]own|DOWN)\b|link status definitely down"),
        ("able unplugged", r"[Cc]able unplugged"),
        ("lost carrier", r"lost carrier"),
    ),
    "nfs_timeout": (
        ("nfs: server", r"nfs: server \S+ not responding"),
        ("RPC: ", r"timed out"),
        ("NFS: ", r"server error|state manager.*failed"),
    ),
    "lustre": (
        ("LustreError: ", r"LustreError: "),
        ("LNetError: ", r"LNetError: "),
        ("Lustre: ", r"was evicted|Connection to .* was lost|timed out"),
    ),
    "fs_error": (
        ("EXT4-fs", r"EXT4-fs (?:error|\(\S+\): Remounting filesystem read-only)"),
        ("XFS (", r"XFS \(\S+\): .*(?:[Cc]orrupt|I/O error|[Ii]nternal error|[Ss]hutting down)"),
        ("BTRFS ", r"BTRFS (?:error|critical)"),
        ("I/O error", r"I/O error, dev "),
        ("nvme", r"I/O .*timeout|controller is down"),
    ),
    "segfault": (
        ("segfault", r"segfault at "),
        ("traps: ", r"general protection|trap (?:invalid|int3|divide)"),
    ),
    "thermal": (
        ("emperature", r"temperature above threshold|[Cc]ritical temperature reached|[Oo]ver ?temperature"),
        ("throttled", r"cpu clock throttled"),
    ),
    "kernel_bug": (
        ("BUG: ", r"BUG: "),
        ("Oops", r"Oops: "),
        ("Kernel panic", r"Kernel panic"),
        ("protection fault", r"general protection fault"),
    ),
}

_COMPILED = [(name, word, re.compile(pattern)) for name, rows in CLASSES.items() for word, pattern in rows]

# Upstream's one number: kernel messages of level warning or worse about a GPU; here it counts Xids as well.
_GPU_WORDS = re.compile(r"amdgpu|drm|xgmi|nvrm: xid")
_GPU_TROUBLE = re.compile(r"error|fault|fail|reset|timeout|nvrm: xid")
_WARNING = 4


def classify(text: str) -> tuple[str, dict[str, str]] | None:
    """The class of a line and the parts of it that its pattern names; None for a line that means no trouble."""
    for name, word, pattern in _COMPILED:
        if word in text:
            match = pattern.search(text)
            if match:
                return name, match.groupdict()
    return None


def upstream_gpu_error(level: int, text: str) -> bool:
    """Whether upstream's hw_dmesg_gpu_errors_total counts the line."""
    if level > _WARNING:
        return False
    text = text.lower()
    return bool(_GPU_WORDS.search(text) and _GPU_TROUBLE.search(text))
