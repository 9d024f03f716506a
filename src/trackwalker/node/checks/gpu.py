"""GPUs: there, free, without memory errors, and on one driver and firmware. AMD from sysfs, NVIDIA from NVML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from trackwalker.job.processes import read_bytes
from trackwalker.node.checks.result import Check, Context, Result, failed, passed, several, skipped, warned
from trackwalker.node.collectors.gpu_amd import RAS_LINE, bad_pages, discover
from trackwalker.node.sensors import nvml
from trackwalker.node.sensors.sysfs import line, names

_RESET = "drain the node and reset the GPU; if it returns, replace the card"
_FW = "_fw_version"  # files of amdgpu: smc_fw_version, vcn_fw_version, …
_NONE = "no GPUs here"


@contextmanager
def _nvidia(context: Context) -> Iterator[list[tuple[nvml.Nvml, int]]]:
    """The attached driver and the number of each GPU it knows, lost ones included; none without NVIDIA's driver."""
    driver = nvml.load(context.nvml)
    if driver is None:
        yield []
        return
    try:
        driver.init()
    except nvml.NvmlError as error:
        if error.code != nvml.DRIVER_NOT_LOADED:
            raise
        yield []  # the library alone, as on a login node or in an image
        return
    try:
        yield [(driver, index) for index in range(driver.count())]
    finally:
        driver.shutdown()


def present(context: Context) -> Result:
    """As many GPUs as the job needs, each reached by its driver."""
    amd = discover(context.sys)
    lost = []
    with _nvidia(context) as nvidia:
        for driver, index in nvidia:
            try:
                driver.text(driver.handle(index), "nvmlDeviceGetUUID")
            except nvml.NvmlError as error:
                lost.append(f"GPU {index}: {error.name}")
    # The KFD counts what programs will see: every partition of a card, and only what this job's cgroup lets through.
    usable = _kfd_nodes(context) or len(amd)
    count = usable + len(nvidia)
    data = {"count": count, "amd": usable, "amd_cards": len(amd), "nvidia": len(nvidia), "lost": lost}
    if lost:
        return failed(f"{several(count, 'GPU')}, lost: {', '.join(lost)}", _RESET, **data)
    if context.gpus and count < context.gpus:
        remedy = "look for a GPU that fell off the bus (dmesg), or leave this node out"
        return failed(f"{several(count, 'GPU')} (expected {context.gpus})", remedy, expected=context.gpus, **data)
    if not count:
        return skipped(_NONE, **data)
    return passed(several(count, "GPU"), **data)


def _kfd_nodes(context: Context) -> int:
    root = f"{context.sys}/class/kfd/kfd/topology/nodes"
    return sum(line(f"{root}/{name}/gpu_id") not in ("", "0") for name in names(root))  # a CPU's is 0


def free(context: Context) -> Result:
    """No process holds a GPU. Nothing is killed: the line names who must go."""
    amd = discover(context.sys)
    holders = _kfd_holders(context) if amd else {}
    with _nvidia(context) as nvidia:
        for driver, index in nvidia:
            try:
                for pid in driver.compute_processes(driver.handle(index)):
                    holders.setdefault(pid, 0)
            except nvml.NvmlError as error:
                if error.code not in nvml.LOST:  # the check for presence names a lost GPU
                    raise
    count = max(len(amd), _kfd_nodes(context)) + len(nvidia)
    if not count:
        return skipped(_NONE)
    if not holders:
        return passed("no process holds a GPU", processes=[])
    processes = [_process(context, pid, held) for pid, held in sorted(holders.items())]
    text = f"held by {', '.join(str(p['who']) for p in processes[:4])}{' …' if len(processes) > 4 else ''}"
    if context.gpus is not None and context.gpus < count:
        return warned(f"{text}; the job uses {context.gpus} of {count} GPUs", processes=processes)
    return failed(text, "end these processes, or wait for the job they belong to", processes=processes)


def _kfd_holders(context: Context) -> dict[int, int]:
    """Process -> bytes of GPU memory. One that has neither memory nor queues only looks on, as monitors do."""
    root = f"{context.sys}/class/kfd/kfd/proc"
    holders = {}
    for name in names(root):
        if not name.isdigit():
            continue
        memory = [int(line(f"{root}/{name}/{f}") or 0) for f in names(f"{root}/{name}") if f.startswith("vram_")]
        held = sum(memory)
        if held or not memory or names(f"{root}/{name}/queues"):
            holders[int(name)] = held
    return holders


def _process(context: Context, pid: int, memory: int) -> dict[str, object]:
    name = line(f"{context.proc}/{pid}/comm")
    state = re.search(r"State:\s*(\S)", (read_bytes(f"{context.proc}/{pid}/status") or b"").decode("utf-8", "replace"))
    kind = {"Z": " (zombie: its parent must reap it)", "D": " (hangs in the kernel)"}.get(state[1] if state else "", "")
    # From inside a container, processes outside have no name.
    who = f"pid {pid}{f' {name}' if name else ' (not visible from here)'}{kind}"
    return {"pid": pid, "name": name, "vram_bytes": memory, "who": who}


def errors(context: Context) -> Result:
    """No uncorrected memory error since the driver was loaded, no row or page that waits for a reset."""
    bad: list[str] = []
    counts: dict[str, dict[str, int]] = {}
    for pci in discover(context.sys):
        counts[pci], found = _ras(f"{context.sys}/bus/pci/devices/{pci}/ras")
        bad += [f"{pci} {text}" for text in found]
    with _nvidia(context) as nvidia:
        for driver, index in nvidia:
            try:
                counts[f"GPU {index}"], found = _ecc(driver, driver.handle(index))
            except nvml.NvmlError as error:
                if error.code not in nvml.LOST:
                    raise
            else:
                bad += [f"GPU {index} {text}" for text in found]
    if not counts:
        return skipped(_NONE)
    if not any(counts.values()):
        return skipped("these GPUs report no error counters", counts=counts)
    if bad:
        return failed(f"{'; '.join(bad[:4])}{' …' if len(bad) > 4 else ''}", _RESET, counts=counts)
    corrected = sum(c.get("ce", 0) for c in counts.values())
    return passed(f"no uncorrected errors{f', {corrected} corrected' if corrected else ''}", counts=counts)


def _ras(folder: str) -> tuple[dict[str, int], list[str]]:
    counts: dict[str, int] = {}
    bad = []
    for name in names(folder):
        if not name.startswith("aca_") and not name.endswith("_err_count"):
            continue
        block = name[4:] if name.startswith("aca_") else name[: -len("_err_count")]
        for kind, number in RAS_LINE.findall(read_bytes(f"{folder}/{name}") or b""):
            counts[kind.decode()] = counts.get(kind.decode(), 0) + int(number)
            if kind == b"ue" and int(number):
                bad.append(f"UE={int(number)} in {block}")
    pages = bad_pages(read_bytes(f"{folder}/gpu_vram_bad_pages"))
    for state, word in (("pending", "wait for a reset"), ("failed", "could not be retired")):
        if pages.get(state):
            counts[f"pages_{state[0].upper()}"] = pages[state]
            bad.append(f"{several(pages[state], 'bad HBM page')} {word}")
    return counts, bad


def _ecc(driver: nvml.Nvml, handle: nvml.Handle) -> tuple[dict[str, int], list[str]]:
    counts: dict[str, int] = {}
    bad = []
    # Arguments: corrected 0, uncorrected 1; volatile (since the driver was loaded) 0, aggregate (the card's life) 1.
    for key, args in {"ue": (1, 0), "ce": (0, 0), "ue_life": (1, 1)}.items():
        with _unsupported():
            counts[key] = driver.number(handle, "nvmlDeviceGetTotalEccErrors", *args, wide=True)
    with _unsupported():
        corrected, uncorrected, pending, failure = driver.remapped_rows(handle)
        counts["rows_remapped"] = corrected + uncorrected
        bad += ["row remapping pending: a reset is due"] * bool(pending)
        bad += ["row remapping failed"] * bool(failure)
    if counts.get("ue"):
        bad.insert(0, f"UE={counts['ue']}")
    return counts, bad


@contextmanager
def _unsupported() -> Iterator[None]:
    """A card without ECC (or a driver too old) has no such number: that is no finding."""
    try:
        yield
    except nvml.NvmlError as error:
        if error.code not in nvml.NEVER:
            raise


def versions(context: Context) -> Result:
    """Driver, kernel and firmware: all GPUs of a node alike; whether nodes are alike is for `compare` to say."""
    drivers: dict[str, str] = {}
    adapters = f"{context.sys}/class/infiniband"
    firmware: dict[str, dict[str, str]] = {}  # GPU: part: version
    for pci in discover(context.sys):
        device = f"{context.sys}/bus/pci/devices/{pci}"
        drivers["amdgpu"] = line(f"{context.sys}/module/amdgpu/version") or "in-tree"
        parts = {name[: -len(_FW)]: line(f"{device}/fw_version/{name}") for name in names(f"{device}/fw_version")}
        firmware[pci] = {"vbios": line(f"{device}/vbios_version"), **parts}
    with _nvidia(context) as nvidia:
        for driver, index in nvidia:
            drivers["nvidia"] = driver.driver_version()
            firmware[f"GPU {index}"] = {"vbios": driver.text(driver.handle(index), "nvmlDeviceGetVbiosVersion")}
    nics = sorted({line(f"{adapters}/{name}/fw_ver") for name in names(adapters)} - {""})
    kernel = line(f"{context.proc}/sys/kernel/osrelease")
    kinds = sorted({(part, version) for parts in firmware.values() for part, version in parts.items()})
    data = {"kernel": kernel, "driver": drivers, "firmware": [f"{p} {v}" for p, v in kinds], "nic_firmware": nics}
    text = ", ".join([f"kernel {kernel}", *(f"{name} {version}" for name, version in drivers.items())])
    odd = sorted({part for part, _ in kinds if sum(p == part for p, _ in kinds) > 1})
    if odd:
        where = {g: {p: v for p, v in parts.items() if p in odd} for g, parts in firmware.items()}
        return failed(f"{text}; GPUs differ in {', '.join(odd)}", "bring all GPUs to one firmware", odd=where, **data)
    return passed(text, **data)


CHECKS = (
    Check("gpus", present, gates=True),
    Check("gpus_free", free, gates=True),
    Check("ecc", errors, gates=True),
    Check("versions", versions, gates=False),
)
