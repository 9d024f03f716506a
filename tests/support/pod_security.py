"""The Pod Security standard "baseline" as rules: what of a pod it forbids, known before the API says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_CAPABILITIES = frozenset(
    (
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
        "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    )
)  # fmt: skip
_SYSCTLS = frozenset(
    (
        "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    )
)  # fmt: skip
_SELINUX = frozenset(("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"))


def breaches(manifest: dict[str, Any]) -> list[str]:
    """What a Job or JobSet would be refused for in a namespace that enforces "baseline"."""
    if manifest.get("kind") == "JobSet":
        pods = [job["template"]["spec"]["template"] for job in manifest["spec"]["replicatedJobs"]]
    elif manifest.get("kind") == "Job":
        pods = [manifest["spec"]["template"]]
    else:
        return []
    return [text for pod in pods for text in _pod(pod)]


def _pod(template: dict[str, Any]) -> Iterator[str]:
    spec, notes = template["spec"], (template.get("metadata") or {}).get("annotations") or {}
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"{name} is set"
    for volume in spec.get("volumes", []):
        if "hostPath" in volume:
            yield f"volume {volume['name']} is a hostPath"
    own = spec.get("securityContext") or {}
    yield from _context(own, "the pod")
    for sysctl in own.get("sysctls", []):
        if sysctl["name"] not in _SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    for key, value in notes.items():
        profile = str(value)
        if key.startswith("container.apparmor.security.beta.kubernetes.io/") and not (
            profile == "runtime/default" or profile.startswith("localhost/")
        ):
            yield f"AppArmor profile {profile}"
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        yield from _container(container)


def _container(container: dict[str, Any]) -> Iterator[str]:
    name, rules = container["name"], container.get("securityContext") or {}
    if rules.get("privileged"):
        yield f"container {name} is privileged"
    added = set((rules.get("capabilities") or {}).get("add") or [])
    if beyond := sorted(added - _CAPABILITIES):
        yield f"container {name} adds {', '.join(beyond)}"
    for port in container.get("ports", []):
        if port.get("hostPort"):
            yield f"container {name} takes the host's port {port['hostPort']}"
    if rules.get("procMount", "Default") != "Default":
        yield f"container {name} sets procMount"
    yield from _context(rules, f"container {name}")


def _context(rules: dict[str, Any], who: str) -> Iterator[str]:
    if (rules.get("seccompProfile") or {}).get("type") == "Unconfined":
        yield f"{who} runs without seccomp"
    if (rules.get("appArmorProfile") or {}).get("type") == "Unconfined":
        yield f"{who} runs without AppArmor"
    selinux = rules.get("seLinuxOptions") or {}
    if selinux.get("type", "") not in _SELINUX or selinux.get("user") or selinux.get("role"):
        yield f"{who} sets SELinux options"
    if (rules.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{who} is a host process"
