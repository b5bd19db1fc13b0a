"""tools/simulate's buckets, clusters, results, fits and commands; and what it predicts of the public record."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import _compute_bucket_assignment_by_size

from benchmarks.bert.bench.lengths import read_shares, wikipedia_shares
from benchmarks.bert.config import load
from benchmarks.bert.growth.plan import Size, Stage
from benchmarks.bert.model.bert import Bert, BertShape
from benchmarks.bert.model.frozen import train_only
from tools.simulate import cluster as clusters
from tools.simulate.__main__ import main
from tools.simulate.buckets import buckets_of, lay_out, trained_parameters
from tools.simulate.calibrate import Measured, fit_machine, sizes_of
from tools.simulate.cluster import CONSTANTS, FITTED, ClusterError, with_constants, with_fitted
from tools.simulate.fit import OF_START, OF_STEP, Dealt, fitted
from tools.simulate.results import ResultsError, read_results
from tools.simulate.tables import between_marks
from tools.simulate.validate import cluster_of, predict

SHARES = wikipedia_shares()
PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "data"
HEADING = (
    "role,round,system,nodes,accelerators,accelerator,global_batch,samples_to_target,run_s_olympic_mean,"
    "first_accuracy_at_s,interval_between_evaluations_s,notes"
)
ROWS = [
    'fit,v2.0,small,1,8,NVIDIA A100-SXM4-80GB,448,2646840,1106.55,64.93,62.40,"unpadded, LAMB, no overlap"',
    'fit,v2.0,large,128,1024,NVIDIA A100-SXM4-80GB,4096,2782046,25.25,2.39,1.536,"packed, CUDA graph, no overlap"',
    'test,v3.0,hopper,1,8,NVIDIA H100-SXM5-80GB,768,2549468,328.13,,,"FP8, packed"',
]


def table_of(folder: Path, rows: Sequence[str] = ROWS, heading: str = HEADING) -> Path:
    path = folder / "results.csv"
    path.write_text("\n".join([heading, *rows]) + "\n", "utf-8")
    return path


class TestBuckets:
    @pytest.mark.parametrize("bucket_mb", [0.05, 1.0, 25.0])
    def test_as_torch_lays_them_out(self, bucket_mb: float) -> None:
        shape = BertShape(num_vocabulary=1000, num_layers=6, hidden_size=256, num_heads=4, ffn_size=1024)
        parameters = list(reversed(list(Bert(shape).parameters())))
        limits = [1 << 20, int(bucket_mb * 2**20)]
        expected, _ = _compute_bucket_assignment_by_size(parameters, limits, [False] * len(parameters))
        assert lay_out([p.numel() * 4 for p in parameters], bucket_mb) == expected

    def test_other_limits_are_noticed(self) -> None:
        tensors = [torch.empty(1000) for _ in range(500)]
        expected, _ = _compute_bucket_assignment_by_size(tensors, [1 << 19, 1 << 20], [False] * 500)
        assert lay_out([4000] * 500, 1.0) != expected

    def test_the_records_22_buckets(self) -> None:
        """Its trainer's fp16 gradients, and ours in fp32 with BUCKET_MB=50."""
        whole = Stage(1, Size(24, 1024))
        halves, ours = buckets_of(BertShape(), whole, 25.0, 2), buckets_of(BertShape(), whole, 50.0, 4)
        assert [round(size / 2**20) for size in halves.bytes_B] == [2, 26, *[32, 32, 26, 26, 26, 26] * 3, 32, 77]
        assert np.array_equal(ours.bytes_B, 2 * halves.bytes_B)
        assert halves.num_bytes == 2 * (336_232_258 - 6)  # its logs'; it pads the decoder's bias to a multiple of 8

    @pytest.mark.parametrize("norm", ["post", "pre"])
    def test_parameters_are_the_models(self, norm: str) -> None:
        shape = BertShape(num_vocabulary=1001, num_layers=3, hidden_size=32, num_heads=4, ffn_size=96, norm=norm)
        expected = {name: p.numel() for name, p in Bert(shape).named_parameters()}
        found = trained_parameters(shape, Stage(1, Size(3, 32)))
        assert list(found.items()) == list(expected.items())

    @pytest.mark.parametrize("decoder", [True, False])
    def test_frozen_parameters_are_in_no_bucket(self, decoder: bool) -> None:
        shape = BertShape(num_vocabulary=1001, num_layers=3, hidden_size=32, num_heads=4, ffn_size=96)
        stage = Stage(1, Size(3, 32), num_frozen=2, embeddings_train=False, decoder_trains=decoder)
        model = Bert(shape)
        train_only(model, 2, embeddings=False, decoder=decoder)
        expected = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert buckets_of(shape, stage, 25.0, 4).num_bytes == 4 * expected

    def test_buckets_fill_in_their_order_and_the_embeddings_last(self) -> None:
        ready_B = buckets_of(BertShape(), Stage(1, Size(24, 1024)), 25.0, 2).ready_B
        assert (np.diff(ready_B) > 0).all()
        assert ready_B[-1] == 1
        assert ready_B[0] < 0.01


class TestClusters:
    @pytest.mark.parametrize("name", clusters.names())
    def test_each_has_sources_and_few_fitted_constants(self, name: str) -> None:
        assert clusters.load(name).name == name
        sources = clusters.sources(name)
        assert set(sources) == set(CONSTANTS)
        assert all(sources.values())
        assert sum(source == FITTED for source in sources.values()) <= 4

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("speed = { value = 1, source = 'x' }", "no constant of a cluster"),
            ("num_links = 3", "num_links: expected"),
            ("num_links = { value = 0, source = 'x' }", "above 0"),
            ("rank_spread = { value = -0.1, source = 'x' }", "from 0"),
            ("rank_spread = { value = nan, source = 'x' }", "from 0"),
            ("num_links = { value = 3", "cannot read"),
        ],
        ids=["unknown", "plain", "zero", "negative", "nan", "no toml"],
    )
    def test_a_bad_file_is_one_clear_error(self, tmp_path: Path, line: str, message: str) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(f'like = "dgx_a100"\n[constants]\n{line}\n')
        with pytest.raises(ClusterError, match=message):
            clusters.load(str(path))

    def test_a_file_like_another_changes_what_it_says(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.toml"
        path.write_text("like = \"dgx_a100\"\n[constants]\nnum_links = { value = 2, source = 'mine' }\n")
        mine, other = clusters.load(str(path)), clusters.load("dgx_a100")
        assert mine == replace(other, name="mine", num_links=2)

    def test_a_missing_constant_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.toml"
        path.write_text('accelerator = "X"\nranks_per_node = 8\nmemory_gb = 80\n[constants]\n')
        with pytest.raises(ClusterError, match=CONSTANTS[0]):
            clusters.load(str(path))

    def test_fitted_values_are_put_where_they_stand(self, tmp_path: Path) -> None:
        text = clusters.path_of("dgx_a100").read_text("utf-8")
        path = tmp_path / "mine.toml"
        path.write_text(with_fitted(text, {"half_tokens": 1234.0}))
        assert clusters.load(str(path)) == replace(clusters.load("dgx_a100"), name="mine", half_tokens=1234)
        with pytest.raises(ClusterError, match="num_links"):
            with_fitted(text, {"num_links": 3.0})


class TestResults:
    def test_notes_and_columns_become_a_job(self, tmp_path: Path) -> None:
        results, refused = read_results(table_of(tmp_path))
        small, large, hopper = (result.job for result in results)
        assert not refused
        assert (small.layout.per_rank, small.packed, small.graphs, small.clip) == (56, False, False, "global_before")
        assert (large.layout.num_ranks, large.packed, large.graphs) == (1024, True, True)
        assert (hopper.fp8, hopper.packed, results[2].cluster) == (True, True, "dgx_h100")
        assert math.isnan(results[2].interval_s)

    @pytest.mark.parametrize(
        ("cells", "message"),
        [
            ({"accelerators": "9", "nodes": "2"}, "do not divide evenly"),
            ({"accelerator": "TPU-v4"}, "described are"),
            ({"accelerator": "A100-PCIe-80GB"}, "described are"),
            ({"global_batch": "many"}, "global_batch is 'many'"),
            ({"global_batch": "-1"}, "global_batch is '-1'"),
            ({"samples_to_target": "nan"}, "samples_to_target"),
            ({"run_s_olympic_mean": ""}, "run_s_olympic_mean"),
            ({"interval_between_evaluations_s": "0"}, "interval_between_evaluations_s"),
            ({"role": "train"}, "expected fit or test"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_a_row_that_cannot_be_read_is_named_and_the_others_are(
        self, tmp_path: Path, cells: dict[str, str], message: str
    ) -> None:
        row = dict(zip(HEADING.split(","), ROWS[0].replace(', LAMB, no overlap"', '"').split(","), strict=True)) | cells
        results, refused = read_results(table_of(tmp_path, [ROWS[1], ",".join(row.values())]))
        assert [result.system for result in results] == ["large"]
        assert len(refused) == 1
        assert message in refused[0]
        assert ":3: small" in refused[0]

    def test_a_node_of_fewer_accelerators_has_one_link(self, tmp_path: Path) -> None:
        four = ROWS[0].replace("small,1,8", "four,2,8")
        results, _ = read_results(table_of(tmp_path, [ROWS[0], four]))
        assert [cluster_of(result).num_links for result in results] == [8, 1]

    def test_a_row_with_too_few_cells(self, tmp_path: Path) -> None:
        _, refused = read_results(table_of(tmp_path, ["fit,v2.0,short,1,8"]))
        assert "number of columns" in refused[0]

    def test_a_table_without_a_column(self, tmp_path: Path) -> None:
        with pytest.raises(ResultsError, match="no column nodes"):
            read_results(table_of(tmp_path, heading=HEADING.replace("nodes", "machines")))


class TestFit:
    def test_finds_the_constants_that_made_the_results(self, tmp_path: Path) -> None:
        start = clusters.load("dgx_a100")
        true = replace(start, matmul_flops_per_s=1.2e14, half_tokens=700.0, start_s=1.5, workers_s=0.75)
        rows = []
        for result in read_results(table_of(tmp_path))[0][:2]:
            found = Dealt.of(result, SHARES).run(true)
            first_s = found.interval_s + found.start_s
            rows.append(replace(result, interval_s=found.interval_s, first_accuracy_s=first_s))
        found = fitted(start, [Dealt.of(row, SHARES) for row in rows])
        for name in (*OF_STEP, *OF_START):
            assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-4), name

    def test_too_few_rows_are_refused(self, tmp_path: Path) -> None:
        rows = read_results(table_of(tmp_path))[0][:1]
        with pytest.raises(ValueError, match="1 rows marked fit"):
            fitted(clusters.load("dgx_a100"), [Dealt.of(row, SHARES) for row in rows])


class TestCalibration:
    CONFIG = load({"CONFIG": "config_CPU_1x2x8x1.sh"})

    def predicted(self, cluster: clusters.Cluster, steps_s: dict[int, float]) -> float:
        measured = Measured(steps_s=steps_s, all_reduce_s=2 / 2 * 4e6 / 1e9, num_bytes=4_000_000)
        return fit_machine(self.CONFIG, cluster, SHARES[:209] / SHARES[:209].sum(), 2048, measured).predicted_s

    def test_the_unseen_size_is_predicted_from_the_two_others(self) -> None:
        small, middle, large = sizes_of(self.CONFIG)
        assert (small, middle, large) == (4, 8, 16)
        cluster = clusters.load("cpu_pair")
        found = self.predicted(cluster, {4: 0.05, 8: 99.0, 16: 0.17})
        assert 0.08 < found < 0.1

    def test_the_unseen_measurement_changes_nothing(self) -> None:
        cluster = clusters.load("cpu_pair")
        assert self.predicted(cluster, {4: 0.05, 8: 1.0, 16: 0.17}) == self.predicted(
            cluster, {4: 0.05, 8: 2.0, 16: 0.17}
        )


class TestCommands:
    RUN = ("run", "--cluster", "dgx_a100", "--set", "NUM_NODES=2", "--set", "RANKS_PER_NODE=8", "--steps", "2")

    def test_run_draws_the_step(self, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        svg, trace = tmp_path / "step.svg", tmp_path / "step.json"
        assert main([*self.RUN, "--samples", "100000", "--timeline", str(svg), "--trace", str(trace)]) == 0
        assert "| together |" in capsys.readouterr().out
        rectangles = ElementTree.parse(svg).getroot().findall("{http://www.w3.org/2000/svg}rect")
        events = json.loads(trace.read_text())["traceEvents"]
        names = {event["name"] for event in events if event["ph"] == "X"}
        lanes = {event["args"]["name"] for event in events if event["ph"] == "M"}
        assert {"forward", "optimizer", "bucket 0", "backward of bucket 0"} <= names
        assert "network" in lanes
        assert len(lanes) == 6
        assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
        assert len(rectangles) > 6 * 22

    def test_validate_ends_with_the_median(self, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        assert main(["validate", str(table_of(tmp_path))]) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith("median error ")

    def test_validate_says_which_row_it_could_not_read(self, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        path = table_of(tmp_path, [*ROWS, ROWS[0].replace("A100-SXM4", "Gaudi")])
        assert main(["validate", str(path)]) == 1
        printed = capsys.readouterr()
        assert "results.csv:5: small: accelerator" in printed.err
        assert printed.out.splitlines()[-1].startswith("median error ")

    @pytest.mark.parametrize(
        "arguments",
        [
            ["run", "--cluster", "nowhere"],
            ["run", "--cluster", "dgx_a100", "--set", "BATCH_SIZE=0"],
            ["run", "--cluster", "dgx_a100", "--config", "no_such_file.sh"],
            ["validate", "no_such_file.csv"],
            ["run", "--cluster", "dgx_a100", "--histogram", "no_such_file.csv"],
        ],
        ids=["cluster", "value", "config", "table", "histogram"],
    )
    def test_bad_input_is_refused(self, arguments: list[str], capsys: pytest.CaptureFixture) -> None:
        assert main(arguments) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("error: ")
        assert not printed.out

    def test_plan_writes_a_configuration_that_can_be_run(self, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        assert main(["plan", "--cluster", "dgx_h100", "--minutes", "20", "--out", str(tmp_path)]) == 0
        (path,) = tmp_path.iterdir()
        config = load({"CONFIG": str(path)})
        assert path.name == f"config_DGXH100_{config.num_nodes}x8x{config.batch_size}x1_plan.sh"
        assert "minutes predicted" in capsys.readouterr().out

    def test_a_time_that_cannot_be_reached_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
        arguments = ["plan", "--cluster", "dgx_h100", "--minutes", "0.5", "--max-nodes", "1", "--out", str(tmp_path)]
        assert main(arguments) == 2
        assert "the fastest takes" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


def test_a_part_of_a_page_is_replaced_between_its_marks() -> None:
    page = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    assert between_marks(page, "x", "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="y: begin"):
        between_marks(page, "y", "new")


@pytest.mark.skipif(not (PUBLIC / "public_results.csv").is_file(), reason="the table of public results is not here")
class TestPublicRecord:
    def predictions(self) -> list:
        share_L = read_shares(PUBLIC / "wiki_length_histogram.csv")
        results, refused = read_results(PUBLIC / "public_results.csv")
        assert not refused
        return predict(results, share_L)

    def test_errors_are_within_the_aims(self) -> None:
        errors = [abs(each.error) for each in self.predictions() if each.result.role == "test"]
        assert np.median(errors) < 0.10
        assert max(errors) < 0.25

    def test_a_slower_network_and_rate_would_miss_them(self) -> None:
        """The same check of constants that are wrong by half fails, so it can fail."""
        results, _ = read_results(PUBLIC / "public_results.csv")
        result = next(each for each in results if each.role == "test")
        cluster = clusters.load(result.cluster)
        wrong = with_constants(cluster, {"matmul_flops_per_s": cluster.matmul_flops_per_s / 2})
        predicted = Dealt.of(result, SHARES).run(wrong).samples_per_s
        assert abs(predicted / result.samples_per_s - 1) > 0.25

    def test_the_records_step_start_and_time(self) -> None:
        (record,) = [
            each
            for each in self.predictions()
            if (each.result.round, each.result.job.layout.num_ranks, each.result.job.layout.per_rank)
            == ("v2.0", 1024, 16)
        ]
        assert record.run.amortised_step_s == pytest.approx(0.1085, rel=0.10)
        assert 0.9 * 2.1 <= record.run.start_s <= 1.1 * 2.9
        assert record.run.seconds == pytest.approx(22.32, rel=0.10)
