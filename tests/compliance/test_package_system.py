"""The description of a system: what the logs, a template, another tool and the machine itself say of it."""

from __future__ import annotations

import json

import pytest

from tests.support.packages import ORGANISATION, SYSTEM, Build, run_package
from tests.support.tiny import ROOT
from tools.package import machine, system

NVIDIA_SMI = "NVIDIA H200, 143771 MiB, 1980 MHz, 550.54.15\n" * 2
LSCPU = """\
CPU(s):                 4
Thread(s) per core:     2
Core(s) per socket:     1
Socket(s):              2
Model name:             Fast One
BIOS Model name:        pc-1
CPU max MHz:            3500.0000
L1d cache:              64 KiB (2 instances)
L3 cache:               32 MiB (1 instance)
Model name:             Slow One
NUMA node0 CPU(s):      0-3
"""


# --- the description


def test_the_template_in_the_repository_is_the_one_that_is_checked() -> None:
    assert json.loads((ROOT / "systems" / "template.json").read_text()) == system.TEMPLATE


def test_the_logs_fill_what_the_template_leaves_to_them(build: Build) -> None:
    assert build() == 0
    description = json.loads((build.tree / "systems" / f"{SYSTEM}.json").read_text())
    assert description == {key: "known" for key, value in system.TEMPLATE.items() if value} | {
        "submitter": ORGANISATION,
        "division": "closed",
        "status": "Available on-premise",
        "system_name": SYSTEM,
        "number_of_nodes": "1",
        "accelerators_per_node": "8",
        "hw_notes": "",
        "sw_notes": "",
    }


def test_a_capture_of_mlperf_sysinfo_is_a_template(build: Build) -> None:
    """Its flat document: every key a text, what it could not detect empty, a tag of the framework besides."""
    captured = dict.fromkeys(system.TEMPLATE, "") | {
        "submitter": ORGANISATION, "division": "closed", "status": "Preview", "system_name": "Box, one of it",
        "number_of_nodes": "1", "accelerators_per_node": "8", "accelerator_model_name": "H200", "framework_name": "ngc",
    }  # fmt: skip
    build.template.write_text(json.dumps(captured))
    assert build() == 0
    assert json.loads((build.tree / "systems" / f"{SYSTEM}.json").read_text()) == captured


def test_describe_writes_a_template_that_people_must_finish(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_package("describe") == 0
    said = capsys.readouterr()
    build.template.write_text(said.out)
    assert list(json.loads(said.out)) == list(system.TEMPLATE)
    assert "for people to fill in" in said.err
    assert build() == 2
    assert "cooling: FILL IN" in capsys.readouterr().err


def test_a_machine_is_read_from_what_its_tools_print() -> None:
    said = machine.Probes(
        lscpu=LSCPU, meminfo="MemTotal:       1048576 kB\n", os_release='PRETTY_NAME="Linux 1"\n',
        nvidia_smi=NVIDIA_SMI,
        kernel="Linux 6.1", python="3.11.7", packages={"torch": "2.9", "numpy": "2.1"},
    )  # fmt: skip
    assert machine.facts(said) == {
        "host_processors_per_node": "2",
        "host_processor_model_name": "Fast One",
        "host_processor_core_count": "1",
        "host_processor_vcpu_count": "2",
        "host_processor_frequency": "3500 MHz (maximum)",
        "host_processor_caches": "L1d 64 KiB (2 instances), L3 32 MiB (1 instance)",
        "host_memory_capacity": "1.0 GiB",
        "accelerator_model_name": "NVIDIA H200",
        "accelerator_memory_capacity": "143771 MiB",
        "accelerator_frequency": "1980 MHz",
        "framework": "PyTorch 2.9",
        "other_software_stack": "Python 3.11.7, numpy 2.1, Linux 6.1, NVIDIA driver 550.54.15",
        "operating_system": "Linux 1",
    }


SILENT = {  # what nvidia-smi prints, and what is then known of accelerators
    "no such command": (None, dict.fromkeys((key for key in system.TEMPLATE if key.startswith("accelerator_")), "")),
    "it fails": ("", {}),
    "a value is not supported": (
        "NVIDIA X, [Not Supported], 9 MHz, 1\n",
        {"model_name": "NVIDIA X", "frequency": "9 MHz"},
    ),
    "a value is not told": ("NVIDIA X, N/A, 9 MHz, 1.2\n", {"model_name": "NVIDIA X", "frequency": "9 MHz"}),
}


@pytest.mark.parametrize(("printed", "known"), SILENT.values(), ids=SILENT.keys())
def test_what_a_machine_does_not_tell_is_left_out(printed: str | None, known: dict[str, str]) -> None:
    said = machine.Probes("", "", "", printed, kernel="Linux 6.1", python="3.11.7", packages={})
    known = {key if key.startswith("accelerator_") else f"accelerator_{key}": value for key, value in known.items()}
    found = {key: value for key, value in machine.facts(said).items() if key != "other_software_stack"}
    assert found == known
