"""A template and what the logs say in, the description of a system that the official checker wants out.

Who says what: division, number_of_nodes and accelerators_per_node are facts of the runs, and a template that says
otherwise is refused; submitter, status and system_name are the template's, and the logs' where it leaves them empty;
all the rest is the template's alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tools.package.names import PackageError, shown
from tools.package.results import NOT_SET, Results

FILL_IN = "FILL IN: "
_NOBODYS_WORDS = re.compile(r"FILL IN\b.*|.*changeme.*|insert\b.*\bhere|<.*>", re.IGNORECASE | re.DOTALL)

_LOGS = ""  # they know it
MACHINE = f"{FILL_IN}`python -m tools.package describe`, run on the system, writes it"
ACCELERATOR = f"{MACHINE}; empty without accelerators"

# The keys that mlperf-logging's system_desc_checker wants, in its order, as the template has them.
TEMPLATE = {
    "submitter": _LOGS,
    "division": _LOGS,
    "status": _LOGS,
    "system_name": _LOGS,
    "number_of_nodes": _LOGS,
    "host_processors_per_node": MACHINE,
    "host_processor_model_name": MACHINE,
    "host_processor_core_count": MACHINE,
    "host_processor_vcpu_count": MACHINE,
    "host_processor_frequency": MACHINE,
    "host_processor_caches": MACHINE,
    "host_processor_interconnect": f"{FILL_IN}what connects the processors of a node, as UPI or Infinity Fabric",
    "host_memory_capacity": MACHINE,
    "host_storage_type": f"{FILL_IN}what the data lay on, as NVMe SSD",
    "host_storage_capacity": f"{FILL_IN}number and size of disks, as 4x 3.84 TB",
    "host_networking": f"{FILL_IN}network cards of a node, as 8x ConnectX-7 NDR 400 Gb/s; none for a single node",
    "host_networking_topology": f"{FILL_IN}how the nodes are wired, as fat tree; none for a single node",
    "host_memory_configuration": f"{FILL_IN}memory modules of a node, as 16x 64 GB DDR5-4800",
    "accelerators_per_node": _LOGS,
    "accelerator_model_name": ACCELERATOR,
    "accelerator_host_interconnect": f"{FILL_IN}what connects accelerators and host, as PCIe 5.0 x16",
    "accelerator_frequency": ACCELERATOR,
    "accelerator_on-chip_memories": f"{FILL_IN}memories on the chip, as L2 50 MB",
    "accelerator_memory_configuration": f"{FILL_IN}kind of memory, as HBM3",
    "accelerator_memory_capacity": ACCELERATOR,
    "accelerator_interconnect": f"{FILL_IN}what connects the accelerators of a node, as NVLink 4",
    "accelerator_interconnect_topology": f"{FILL_IN}how they are connected, as NVSwitch",
    "cooling": f"{FILL_IN}air or liquid",
    "hw_notes": "",
    "framework": MACHINE,
    "other_software_stack": MACHINE,
    "operating_system": MACHINE,
    "sw_notes": "",
}
_STATUSES = {  # of a log, and what system_desc_checker accepts in their place from round 4.0 on
    "cloud": "Available cloud",
    "onprem": "Available on-premise",
    "preview": "Preview",
    "research": "Research, Development, or Internal (RDI)",
}


def described(facts: dict[str, str]) -> dict[str, str]:
    """The template with what a machine tells of itself."""
    untold = {key: f"{FILL_IN}this machine does not tell" for key, value in TEMPLATE.items() if MACHINE in value}
    return TEMPLATE | untold | facts


def render(description: dict[str, str]) -> str:
    return json.dumps(description, indent=4, ensure_ascii=False) + "\n"


def read_template(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise PackageError(f"{path}: no regular file; name a JSON file as systems/template.json")
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise PackageError(f"{path}: cannot read it ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise PackageError(f"{path}: {shown(content)}, expected a JSON object as in systems/template.json")
    return content


def complete(template: dict[str, Any], path: Path, results: Results, submitter: str) -> dict[str, str]:
    """The description of the system that ran. Raises PackageError with everything that is still to be filled in."""
    facts = _facts(results)
    known = _defaults(results, submitter) | facts
    said = {key: value for key, value in template.items() if not (key in known and (value == "" or _is_open(value)))}
    description = known | said
    problems = [
        f"  {key}: {said[key]!r}, but the runs say {value!r} ({results.folder})"
        for key, value in facts.items()
        if value and isinstance(said.get(key), str) and said[key] != value
    ]
    for key in (*TEMPLATE, *(key for key in template if key not in TEMPLATE)):
        value = description.get(key)
        if key not in description:
            problems.append(f"  {key}: missing")
        elif not isinstance(value, str):
            problems.append(f"  {key}: {shown(value)}, expected a text in quotes")
        elif _is_open(value):
            problems.append(f"  {key}: {value}")
    if not description.get("accelerators_per_node"):
        problems.append("  accelerators_per_node: how many were used; DEVICE=auto in the logs does not tell")
    if facts["accelerators_per_node"] not in ("", "0") and not description.get("accelerator_model_name"):
        problems.append("  accelerator_model_name: which they are; the runs used CUDA")
    if problems:
        raise PackageError(
            f"{path}: not ready for {results.system}; fill in or mend (an empty text says: not disclosed)\n"
            + "\n".join(problems)
        )
    return {key: description[key] for key in (*TEMPLATE, *description)}


def _is_open(value: object) -> bool:
    return isinstance(value, str) and _NOBODYS_WORDS.fullmatch(value.strip()) is not None


def _facts(results: Results) -> dict[str, str]:
    configuration = results.configuration
    ranks, device = configuration.get("RANKS_PER_NODE"), configuration.get("DEVICE")
    accelerators = {"cpu": "0", "cuda": str(ranks)}.get(str(device), "")
    return {
        "division": results.division,
        "number_of_nodes": str(configuration.get("NUM_NODES", "")),
        "accelerators_per_node": accelerators,
    }


def _defaults(results: Results, submitter: str) -> dict[str, str]:
    return {
        "submitter": results.organisation if results.organisation != NOT_SET else submitter,
        "status": _STATUSES.get(results.status, results.status),
        "system_name": results.system,
    }
