"""tools/simulate's engine: what goes in comes out, its limits have closed forms, and better is never slower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bert.bench.lengths import wikipedia_shares
from benchmarks.bert.bench.made_up import num_masked
from benchmarks.bert.comm.hook import CLIP_VARIANTS
from benchmarks.bert.config import load
from benchmarks.bert.data.plan import STRATEGIES, Layout
from benchmarks.bert.growth.notation import parse
from benchmarks.bert.growth.plan import GrowthPlan, Size, Stage
from benchmarks.bert.model.bert import BertShape
from benchmarks.bert.model.flops import mean_packed_flops
from benchmarks.bert.trainer import OPTIMIZERS
from tools.simulate import cluster as clusters
from tools.simulate.compute import work_of
from tools.simulate.deal import lengths_of_ranks
from tools.simulate.job import Habits, Job, of_config, rule_schedule
from tools.simulate.lengths import draw
from tools.simulate.network import ALGORITHMS, all_reduce_s
from tools.simulate.run import Run, simulate
from tools.simulate.step import CLIP_TIMES, OPTIMIZER_BYTES, Timeline, simulate_steps

SHARES = wikipedia_shares()
SHAPE = BertShape(num_vocabulary=1000, num_layers=4, hidden_size=64, num_heads=4, ffn_size=256)
WHOLE = Stage(1, Size(4, 64))
A100 = replace(clusters.load("dgx_a100"), matmul_flops_per_s=1e11)  # slow: the job is small
EVEN = replace(A100, rank_spread=0.0)  # ranks of one speed
JOB = Job(
    name="small",
    layout=Layout(2, 4, 6),
    shape=SHAPE,
    growth=GrowthPlan((WHOLE,)),
    bucket_mb=0.1,
    samples_to_target=48 * 100,
    evaluation=rule_schedule(48),
    evaluation_samples=100,
)


def timeline(job: Job = JOB, cluster: clusters.Cluster = EVEN, num_steps: int = 4, seed: int = 1) -> Timeline:
    lengths_GRK = lengths_of_ranks(job, SHARES, num_steps, seed)
    return simulate_steps(job, job.growth.stages[0], cluster, lengths_GRK, seed)


def run(job: Job = JOB, cluster: clusters.Cluster = EVEN) -> Run:
    return simulate(job, cluster, SHARES, num_steps=3, seed=1)


def infinite(cluster: clusters.Cluster) -> clusters.Cluster:
    """A network that takes no time and disturbs nobody."""
    return replace(
        cluster, node_bytes_per_s=1e30, link_bytes_per_s=1e30, node_latency_s=0, link_latency_s=0, contention=0
    )


def check_conserved(dealt_GRK: np.ndarray, lengths: np.ndarray) -> None:
    """Every drawn sample is on exactly one rank of one step."""
    assert np.array_equal(np.sort(dealt_GRK[dealt_GRK > 0]), np.sort(lengths))


class TestConservation:
    @pytest.mark.parametrize("loading", STRATEGIES)
    def test_every_sample_is_dealt_once(self, loading: str) -> None:
        job = replace(JOB, loading=loading)
        check_conserved(lengths_of_ranks(job, SHARES, 5, seed=3), draw(SHARES, 5 * 48, seed=3))

    def test_a_lost_sample_is_noticed(self) -> None:
        dealt_GRK = lengths_of_ranks(JOB, SHARES, 5, seed=3)
        dealt_GRK[2, 1, 0] = 0
        with pytest.raises(AssertionError):
            check_conserved(dealt_GRK, draw(SHARES, 5 * 48, seed=3))

    def test_packs_hold_two_samples_on_average_and_are_full(self) -> None:
        job = replace(JOB, packed=True, layout=Layout(8, 8, 32))
        dealt_GRK = lengths_of_ranks(job, SHARES, 10, seed=1)
        assert np.count_nonzero(dealt_GRK) / dealt_GRK[..., 0].size == pytest.approx(32, rel=0.01)
        tokens_GR = dealt_GRK.sum(axis=2, dtype=np.int64)
        assert tokens_GR.max() <= 16 * 512
        assert tokens_GR.mean() > 0.99 * 16 * 512

    @pytest.mark.parametrize("clip", CLIP_TIMES)
    def test_every_byte_is_sent_once(self, clip: str) -> None:
        found = timeline(replace(JOB, clip=clip))
        assert found.buckets.num_bytes == 2 * sum(p for p in parameters())
        assert found.sent_GB.shape == (4, len(found.buckets.bytes_B))
        assert (found.sent_GB[:, 1:] >= found.reduced_GB[:, :-1]).all()  # one after the other
        assert (found.sent_GB >= found.ready_GB).all()

    @pytest.mark.parametrize("clip", CLIP_TIMES)
    @pytest.mark.parametrize("habits", [Habits(), Habits(step_waits=True, hook_waits=True)], ids=["ours", "waiting"])
    def test_the_split_is_the_whole_step(self, clip: str, habits: Habits) -> None:
        found = timeline(replace(JOB, clip=clip, habits=habits, micro_batches=2), A100)
        split = found.split()
        assert sum(split.values()) == pytest.approx(found.total_G.mean())
        assert min(split.values()) >= -1e-12

    def test_flops_are_the_projects_own(self) -> None:
        work = work_of(JOB, WHOLE, np.array([[[100, 30, 0]]], np.uint16))
        expected = sum(
            mean_packed_flops(SHAPE, tokens=s, pairs=s * s, masked=m, read_pairs=(m + 1) * s, last_layer="only_read")
            for s, m in [(100, int(num_masked(np.array(100)))), (30, int(num_masked(np.array(30))))]
        )
        assert work.forward_GR.item() + work.backward_GR.item() == pytest.approx(expected)
        assert work.backward_GR.item() == pytest.approx(2 * work.forward_GR.item())
        assert (work.tokens_GR.item(), work.samples_GR.item()) == (130, 2)


def parameters() -> list[int]:
    from benchmarks.bert.model.bert import Bert

    return [p.numel() for p in Bert(SHAPE).parameters()]


class TestLimits:
    def test_one_rank_is_its_computing_clipping_and_optimizer(self) -> None:
        job = replace(JOB, layout=Layout(1, 1, 6), graphs=True, clip="bucket_before")
        lengths_GRK = lengths_of_ranks(job, SHARES, 4, seed=1)
        work = work_of(job, WHOLE, lengths_GRK)
        flops_G = (work.forward_GR + work.backward_GR)[:, 0]
        seconds_G = flops_G / EVEN.matmul_flops_per_s * (1 + EVEN.half_tokens / work.tokens_GR[:, 0])
        num_bytes = 2 * sum(parameters())
        clip_s = 3 * num_bytes / EVEN.memory_bytes_per_s
        optimizer_s = (28 + 14) * num_bytes / 2 / EVEN.memory_bytes_per_s
        assert timeline(job).total_G == pytest.approx(seconds_G + clip_s + optimizer_s)

    @pytest.mark.parametrize("clip", CLIP_TIMES)
    def test_a_network_that_takes_no_time_leaves_the_slowest_rank(self, clip: str) -> None:
        found = timeline(replace(JOB, clip=clip), infinite(A100))
        slowest_G = found.compute_GR.max(axis=1)
        assert found.total_G == pytest.approx(slowest_G + found.clip_after_s + found.optimizer_s)
        assert found.split()["exposed communication"] == pytest.approx(0, abs=1e-12)

    def test_a_network_that_takes_time_leaves_more(self) -> None:
        assert timeline(cluster=replace(A100, link_bytes_per_s=1e6)).split()["exposed communication"] > 0

    def test_without_overlap_the_all_reduces_follow_backward(self) -> None:
        found = timeline(replace(JOB, clip="global_before"))
        reduce_s = all_reduce_s(found.buckets.bytes_B, EVEN, 2, 4).sum()
        assert found.split()["exposed communication"] == pytest.approx(reduce_s)

    @pytest.mark.parametrize("algorithm", [*ALGORITHMS, "auto"])
    def test_one_rank_sends_nothing(self, algorithm: str) -> None:
        assert all_reduce_s(np.array([1e9]), A100, 1, 1, algorithm).item() == 0

    def test_a_ring_inside_a_node_without_latency(self) -> None:
        cluster = replace(A100, node_latency_s=0)
        assert all_reduce_s(np.array([8e9]), cluster, 1, 8, "ring").item() == pytest.approx(
            2 * 7 / 8 * 8e9 / cluster.node_bytes_per_s
        )

    def test_a_hierarchy_of_nodes_without_latency_is_narrowed_by_links(self) -> None:
        cluster = replace(A100, node_latency_s=0, link_latency_s=0, node_bytes_per_s=1e30)
        expected = 2 * 127 / 128 * 8e9 / (8 * cluster.link_bytes_per_s)
        assert all_reduce_s(np.array([8e9]), cluster, 128, 8, "hierarchical").item() == pytest.approx(expected)

    def test_no_bytes_take_the_latency(self) -> None:
        expected = 2 * 7 * A100.link_latency_s + 2 * 7 * A100.node_latency_s
        assert all_reduce_s(np.array([0.0]), A100, 128, 8, "hierarchical").item() == pytest.approx(expected)

    def test_auto_is_the_fastest(self) -> None:
        sizes = np.array([1e3, 1e6, 1e9])
        each = [all_reduce_s(sizes, A100, 16, 8, name) for name in ALGORITHMS]
        assert np.array_equal(all_reduce_s(sizes, A100, 16, 8), np.min(each, axis=0))

    def test_equal_ranks_with_equal_work_wait_for_nobody(self) -> None:
        shares = np.zeros(129)
        shares[128] = 1
        lengths_GRK = lengths_of_ranks(JOB, shares, 3, seed=1)
        split = simulate_steps(JOB, WHOLE, EVEN, lengths_GRK, seed=1).split()
        assert split["imbalance wait"] == pytest.approx(0, abs=1e-12)
        assert timeline().split()["imbalance wait"] > 0

    def test_the_host_sets_the_pace_of_small_batches(self) -> None:
        slow = replace(EVEN, host_forward_s=6.0)  # of 24 layers; the job has 4
        found = timeline(replace(JOB, clip="none"), infinite(slow))
        assert found.compute_GR == pytest.approx(3.0)
        assert timeline(replace(JOB, clip="none", graphs=True), infinite(slow)).compute_GR.max() < 1

    def test_a_hook_that_waits_adds_the_hosts_time(self) -> None:
        job = replace(JOB, clip="none")
        waiting = replace(job, habits=Habits(hook_waits=True))
        cluster = infinite(replace(EVEN, host_forward_s=6.0))
        alone_GR = timeline(job, replace(cluster, host_forward_s=0)).backward_GR
        assert timeline(job, cluster).backward_GR == pytest.approx(2.0)
        assert timeline(waiting, cluster).backward_GR == pytest.approx(2.0 + alone_GR)


def test_names_are_those_of_training() -> None:
    assert set(CLIP_TIMES) == set(CLIP_VARIANTS)
    assert set(OPTIMIZER_BYTES) == set(OPTIMIZERS)


class TestMonotony:
    """Better is never slower; a small job, so that many can be tried."""

    @settings(max_examples=30, deadline=None)
    @given(
        clip=st.sampled_from(list(CLIP_TIMES)),
        constant=st.sampled_from(["node_bytes_per_s", "link_bytes_per_s", "matmul_flops_per_s", "memory_bytes_per_s"]),
        factor=st.floats(1, 100),
    )
    def test_faster_parts_make_no_slower_steps(self, clip: str, constant: str, factor: float) -> None:
        faster = replace(A100, **{constant: getattr(A100, constant) * factor})
        job = replace(JOB, clip=clip)
        assert (timeline(job, faster).total_G <= timeline(job, A100).total_G * (1 + 1e-12)).all()

    @settings(max_examples=30, deadline=None)
    @given(
        constant=st.sampled_from(
            ["half_tokens", "node_latency_s", "link_latency_s", "contention", "host_forward_s", "host_step_s"]
        ),
        factor=st.floats(1, 1000),
        habits=st.sampled_from([Habits(), Habits(step_waits=True, hook_waits=True)]),
    )
    def test_greater_delays_make_no_faster_steps(self, constant: str, factor: float, habits: Habits) -> None:
        slower = replace(A100, **{constant: getattr(A100, constant) * factor})
        job = replace(JOB, habits=habits)
        assert (timeline(job, slower).total_G >= timeline(job, A100).total_G * (1 - 1e-12)).all()

    @settings(max_examples=30, deadline=None)
    @given(
        small=st.integers(0, 10**9), more=st.integers(0, 10**9), nodes=st.integers(1, 64), per_node=st.integers(1, 8)
    )
    def test_more_bytes_take_no_less(self, small: int, more: int, nodes: int, per_node: int) -> None:
        seconds = all_reduce_s(np.array([small, small + more], np.float64), A100, nodes, per_node)
        assert seconds[0] <= seconds[1]

    @settings(max_examples=20, deadline=None)
    @given(ranks=st.integers(1, 6), more=st.integers(1, 6))
    def test_more_samples_of_a_rank_take_no_less(self, ranks: int, more: int) -> None:
        shares = np.zeros(101)
        shares[100] = 1
        steps = []
        for per_rank in (4, 4 + more):
            job = replace(JOB, layout=Layout(1, ranks, per_rank))
            lengths_GRK = lengths_of_ranks(job, shares, 2, seed=1)
            steps.append(simulate_steps(job, WHOLE, EVEN, lengths_GRK, seed=1).total_G.mean())
        assert steps[0] <= steps[1]

    @pytest.mark.parametrize("clip", ["bucket_before", "global_after", "global_before"])
    def test_clipping_costs(self, clip: str) -> None:
        cluster = replace(EVEN, contention=0)
        steps_G, plain_G = (timeline(replace(JOB, clip=each), cluster).total_G for each in (clip, "none"))
        assert (steps_G > plain_G).all()


class TestDeterminism:
    def test_a_seed_gives_one_run(self) -> None:
        assert np.array_equal(timeline(cluster=A100, seed=5).total_G, timeline(cluster=A100, seed=5).total_G)

    def test_another_seed_gives_another(self) -> None:
        assert not np.array_equal(timeline(cluster=A100, seed=5).total_G, timeline(cluster=A100, seed=6).total_G)


class TestRun:
    @pytest.mark.parametrize(
        ("variables", "expected"),
        [
            ({"PRECISION": "fp16", "LOSS_SCALE": "131072"}, 7),
            ({"PRECISION": "fp16", "LOSS_SCALE": "1024"}, 0),
            ({"PRECISION": "bf16", "LOSS_SCALE": "131072"}, 0),
        ],
        ids=["the record's", "low enough", "no scale"],
    )
    def test_a_loss_scale_that_starts_high_skips_steps(self, variables: dict[str, str], expected: int) -> None:
        assert of_config(load(variables), samples_to_target=1).habits.skipped_steps == expected

    def test_steps_and_evaluations_of_the_record(self) -> None:
        """Facts of its logs: 179 steps, nine evaluations."""
        config = load({"CONFIG": "config_DGXA100_128x8x16x1.sh"})
        job = of_config(config, samples_to_target=2_932_736)
        found = simulate(job, A100, SHARES, num_steps=1, seed=1)
        assert [(each.num_steps, found.num_evaluations) for each in found.stages] == [(179, 9)]
        assert len(found.stages[0].timeline.buckets.bytes_B) == 22

    def test_seconds_are_their_parts(self) -> None:
        job = replace(JOB, habits=Habits(starts_workers=True, skipped_steps=3), evaluation=rule_schedule(48))
        found = run(replace(job, samples_to_target=48 * 10_000))
        step_s = found.stages[0].step_s
        parts = EVEN.start_s + EVEN.workers_s + 3 * step_s + 10_000 * step_s
        assert found.seconds == pytest.approx(parts + found.num_evaluations * found.evaluation_s)
        assert found.num_evaluations == 480_000 // 150_000

    def test_stages_share_the_runs_steps(self) -> None:
        growth = parse("mslt:1,2,3,4@0.2,0.2,0.2,0.2+joint", Size(4, 64), 100)
        found = run(replace(JOB, growth=growth))
        assert [each.num_steps for each in found.stages] == [20] * 5
        sizes = [each.timeline.buckets.num_bytes for each in found.stages]
        assert sizes[-1] == max(sizes)
        steps = [each.step_s for each in found.stages]
        assert steps[-1] == max(steps)

    def test_a_run_that_ends_early_reaches_no_later_stage(self) -> None:
        growth = parse("mslt:1,2,4@0.3,0.3,0.4", Size(4, 64), 100)
        assert [each.num_steps for each in run(replace(JOB, growth=growth, samples_to_target=48 * 40)).stages] == [
            30,
            10,
        ]

    def test_frozen_layers_only_run_forward(self) -> None:
        frozen = Stage(1, Size(4, 64), num_frozen=3, embeddings_train=False)
        lengths_GRK = np.full((1, 1, 2), 200, np.uint16)
        plain, part = work_of(JOB, WHOLE, lengths_GRK), work_of(JOB, frozen, lengths_GRK)
        one_layer = work_of(
            replace(JOB, shape=replace(SHAPE, num_layers=1)), Stage(1, Size(1, 64)), lengths_GRK
        ).backward_GR
        assert part.forward_GR == pytest.approx(plain.forward_GR)
        assert part.backward_GR == pytest.approx(one_layer)
        passing = work_of(JOB, replace(frozen, embeddings_train=True), lengths_GRK)
        assert part.backward_GR < passing.backward_GR < plain.backward_GR

    def test_4096_ranks(self) -> None:
        found = timeline(replace(JOB, layout=Layout(512, 8, 2)), A100, num_steps=3)
        assert found.compute_GR.shape == (3, 4096)
        assert found.samples_GR.sum() == 3 * 8192
