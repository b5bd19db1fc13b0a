"""The launcher's variables say who a process is; halves, contradictions and mismatches are errors with the numbers."""

from __future__ import annotations

import pytest

from benchmarks.bert.world import TORCHRUN, World, WorldError, check_world, from_launcher
from tests.support.launchers import torchrun


def test_torchruns_variables_are_read() -> None:
    world = from_launcher(torchrun())
    assert world == World(rank=3, num_ranks=4, local_rank=1, ranks_per_node=2, rendezvous="env://")
    assert world.num_nodes == 2
    assert (world.is_main, world.is_node_main) == (False, False)


def test_the_first_rank_writes_the_log_and_each_node_has_its_first() -> None:
    first = from_launcher(torchrun(RANK="0", LOCAL_RANK="0", GROUP_RANK="0"))
    second_node = from_launcher(torchrun(RANK="2", LOCAL_RANK="0"))
    assert (first.is_main, first.is_node_main) == (True, True)
    assert (second_node.is_main, second_node.is_node_main) == (False, True)


@pytest.mark.parametrize("variables", [{}, {"MASTER_ADDR": "login1"}, {"LOCAL_RANK": "0", "PATH": "/bin"}])
def test_without_a_launcher_the_world_is_one_rank(variables: dict[str, str]) -> None:
    world = from_launcher(variables)
    assert world == World(rank=0, num_ranks=1, local_rank=0, ranks_per_node=1, rendezvous=None)
    assert (world.num_nodes, world.is_main, world.is_node_main) == (1, True, True)


@pytest.mark.parametrize("missing", TORCHRUN)
def test_a_half_set_world_is_an_error_that_names_what_is_missing(missing: str) -> None:
    variables = torchrun()
    del variables[missing]
    with pytest.raises(WorldError, match=f" are set but not {missing}: start with torchrun, or unset them"):
        from_launcher(variables)


def test_a_rank_alone_is_an_error_that_names_all_that_is_missing() -> None:
    with pytest.raises(WorldError, match=r"^RANK are set but not WORLD_SIZE, LOCAL_RANK, .*MASTER_PORT: "):
        from_launcher({"RANK": "0"})


@pytest.mark.parametrize("text", ["", "-1", "two", "1.0", " 1", "0x1"])
@pytest.mark.parametrize("name", TORCHRUN[:5])
def test_a_variable_that_is_no_count_is_an_error_with_its_name_and_value(name: str, text: str) -> None:
    with pytest.raises(WorldError, match=f"^{name}={text!r}, expected a whole number from 0$"):
        from_launcher(torchrun(**{name: text}))


@pytest.mark.parametrize(
    "changed",
    [
        {"RANK": "4"},
        {"RANK": "9"},
        {"WORLD_SIZE": "3"},
        {"LOCAL_RANK": "2"},
        {"LOCAL_WORLD_SIZE": "3"},
        {"LOCAL_WORLD_SIZE": "0"},
        {"WORLD_SIZE": "0", "RANK": "0"},
    ],
)
def test_a_contradictory_world_is_an_error_with_the_numbers(changed: dict[str, str]) -> None:
    variables = torchrun(**changed)
    with pytest.raises(WorldError, match=f"RANK={variables['RANK']} of WORLD_SIZE={variables['WORLD_SIZE']}") as caught:
        from_launcher(variables)
    assert f"LOCAL_RANK={variables['LOCAL_RANK']} of LOCAL_WORLD_SIZE={variables['LOCAL_WORLD_SIZE']}" in str(
        caught.value
    )


def test_a_world_as_configured_is_accepted() -> None:
    check_world(from_launcher(torchrun()), num_nodes=2, ranks_per_node=2)
    check_world(from_launcher({}), num_nodes=1, ranks_per_node=1)


@pytest.mark.parametrize(("num_nodes", "ranks_per_node"), [(1, 2), (2, 1), (4, 1), (1, 4)])
def test_another_world_than_configured_is_an_error_with_both_numbers(num_nodes: int, ranks_per_node: int) -> None:
    with pytest.raises(
        WorldError,
        match=f"^started 2 nodes x 2 ranks, .* NUM_NODES={num_nodes} x RANKS_PER_NODE={ranks_per_node}; ",
    ):
        check_world(from_launcher(torchrun()), num_nodes=num_nodes, ranks_per_node=ranks_per_node)


def test_one_process_is_not_the_two_ranks_of_the_default() -> None:
    with pytest.raises(WorldError, match=r"^started 1 nodes x 1 ranks, .* NUM_NODES=1 x RANKS_PER_NODE=2;"):
        check_world(from_launcher({}), num_nodes=1, ranks_per_node=2)
