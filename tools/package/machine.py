"""The machine that this runs on in, what it tells of itself for a system description out."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_GPU_FIELDS = ("name", "memory.total", "clocks.max.sm", "driver_version")
_OF_ACCELERATORS = (
    "accelerator_model_name",
    "accelerator_host_interconnect",
    "accelerator_frequency",
    "accelerator_on-chip_memories",
    "accelerator_memory_configuration",
    "accelerator_memory_capacity",
    "accelerator_interconnect",
    "accelerator_interconnect_topology",
)


@dataclass(frozen=True)
class Probes:
    """What the machine answered, as it stands; empty where it did not."""

    lscpu: str
    meminfo: str
    os_release: str
    nvidia_smi: str | None  # None without the command
    kernel: str
    python: str
    packages: dict[str, str]  # name -> version


def probe() -> Probes:
    """Ask this machine. Reads only, needs no root and no network."""
    return Probes(
        lscpu=_run(["lscpu"]) or "",
        meminfo=_read(Path("/proc/meminfo")),
        os_release=_read(Path("/etc/os-release")),
        nvidia_smi=_run(["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader"]),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={name: version for name in ("torch", "numpy", "mlperf-logging") if (version := _version(name))},
    )


def facts(probes: Probes) -> dict[str, str]:
    """Keys of the description with what the probes say; a key that they say nothing of is left out."""
    found = _of_processor(probes.lscpu) | _of_accelerators(probes.nvidia_smi) | _of_software(probes)
    if match := re.search(r"^MemTotal:\s+(\d+) kB", probes.meminfo, re.MULTILINE):
        found["host_memory_capacity"] = f"{int(match[1]) / 2**20:.1f} GiB"
    return {key: value for key, value in found.items() if value is not None}


def _of_processor(lscpu: str) -> dict[str, str | None]:
    lines = (line.partition(":") for line in lscpu.splitlines())
    said = {name.strip(): value.strip() for name, _, value in reversed(list(lines))}  # the first of a name counts
    levels = [f"{level} {said[key]}" for level in ("L1d", "L1i", "L2", "L3") if (key := f"{level} cache") in said]
    cores, threads = said.get("Core(s) per socket", ""), said.get("Thread(s) per core", "")
    frequency = said.get("CPU max MHz")
    return {
        "host_processors_per_node": said.get("Socket(s)"),
        "host_processor_model_name": said.get("Model name"),
        "host_processor_core_count": cores or None,
        "host_processor_vcpu_count": str(int(cores) * int(threads)) if cores.isdigit() and threads.isdigit() else None,
        "host_processor_frequency": f"{float(frequency):.0f} MHz (maximum)" if frequency else None,
        "host_processor_caches": ", ".join(levels) or None,
        "host_processor_interconnect": "" if said.get("Socket(s)") == "1" else None,
    }


def _of_accelerators(nvidia_smi: str | None) -> dict[str, str | None]:
    if nvidia_smi is None:
        return dict.fromkeys(_OF_ACCELERATORS, "")
    rows = [[cell.strip() for cell in line.split(",")] for line in nvidia_smi.splitlines() if line.count(",") == 3]
    if not rows:
        return {}
    names, memories, clocks, _ = (list(dict.fromkeys(column)) for column in zip(*rows, strict=True))
    return {
        "accelerator_model_name": " and ".join(names),
        "accelerator_memory_capacity": _known(memories),
        "accelerator_frequency": _known(clocks),
    }


def _known(values: Sequence[str]) -> str | None:
    return None if any("N/A" in value or "[" in value for value in values) else " and ".join(values)


def _of_software(probes: Probes) -> dict[str, str | None]:
    drivers = re.findall(r",\s*([\d.]+)\s*$", probes.nvidia_smi or "", re.MULTILINE)
    others = [f"{name} {version}" for name, version in probes.packages.items() if name != "torch"]
    stack = [f"Python {probes.python}", *others, probes.kernel, *(f"NVIDIA driver {driver}" for driver in drivers[:1])]
    system = re.search(r'^PRETTY_NAME="?([^"\n]+)', probes.os_release, re.MULTILINE)
    torch = probes.packages.get("torch")
    return {
        "framework": f"PyTorch {torch}" if torch else None,
        "other_software_stack": ", ".join(stack),
        "operating_system": system[1] if system else None,
    }


def _run(command: list[str]) -> str | None:
    """What it prints; None where there is no such command, nothing where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, env=os.environ | {"LC_ALL": "C"})
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
