"""Every form of the report: what it says, that texts of logs stay texts, and that odd reports render."""

import html
import itertools
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tools.verify.finding import Rule
from tools.verify.render import words
from tools.verify.render.as_json import render_json
from tools.verify.render.groups import groups
from tools.verify.render.html import render_html
from tools.verify.render.markdown import code, escape, render_markdown
from tools.verify.render.plots import accuracy_plot, thin, ticks, time_plot
from tools.verify.render.text import render_text
from tools.verify.report import Check, Evaluation, Folder, Rcp, Report, Run, Score

HOSTILE = "</pre><script>alert(1)</script>|`x` **b** [l](https://evil.example) \x1b[31m\n| new | row |\u202e\udcff"
STATUS = Rule("run_stop.status", "training_rules.adoc 4", "the run's status is success", explains=("*",))
EVALS = Rule("eval_accuracy.exists", "training_5.0.0/common.yaml", "an evaluation is logged")
SEED = Rule("seed.differs", "training_rules.adoc 9", "every run has its own seed")
CACHE = Rule("cache_clear.true", "training_rules.adoc 4", "caches were cleared")


def run_of(number=0, **fields):
    path = Path(f"results/CPU_1x2/result_{number}.txt")
    curve = tuple(Evaluation(20.0 * i, 4_000 * i, 0.4 * (1 - math.exp(-i / 2))) for i in range(1, 7))
    values = {
        "path": path, "findings": (), "official": "pass", "official_shipped": "pass", "benchmark": "bert",
        "division": "open", "organisation": "Us", "platform": "CPU_1x2", "status": "success", "resumed": False,
        "seed": 100 + number,
        "batch": 16, "minutes": 2.22 + 0.01 * number, "init_s": 1.0, "samples": 35_200, "samples_from": "train_samples",
        "accuracy": 0.3915, "target": 0.39, "evaluations": curve, "eval_share": 0.04, "startup_s": 3.0,
    }  # fmt: skip
    return Run(**(values | fields))


def folder_of(*runs, **fields):
    score = Score(
        minutes=tuple(run.minutes for run in runs), dropped=(0, len(runs) - 1) if len(runs) > 2 else (),
        mean_minutes=2.265, scaling=1.05, spread=0.012, samples=35_200.0, samples_per_s=264.3, num_accelerators=2,
        init_s=1.0, eval_share=0.04, startup_s=3.0, counts=True,
    )  # fmt: skip
    rcp = Rcp(
        applies=False, passed=True, message="RCP test passed", batch=16, low_batch=8, high_batch=32, mean=36_000.0,
        minimum=34_100.0, submission_mean=35_200.0, margin=0.0323, scaling=1.05, samples_from="train_samples",
        because="epoch_num is in samples", official_epoch_num="fail", official_train_samples="pass",
    )  # fmt: skip
    values = {
        "path": Path("results/CPU_1x2"), "system": "CPU_1x2", "runs": runs, "findings": (),
        "checks": (Check("compliance", "pass", "all logs"), Check("power", "not applicable", "no power logs")),
        "rcp": rcp, "score": score, "not_applicable": ("system description: none was given",),
    }  # fmt: skip
    return Folder(**(values | fields))


def report_of(*folders, kind="folder", **fields):
    path = folders[0].path if folders else Path("results")
    return Report(**({
        "path": path, "kind": kind, "ruleset": "5.0.0", "ruleset_from": "the last with BERT", "rules": "as-submitted",
        "findings": (), "folders": folders,
    } | fields))  # fmt: skip


def log_report(run):
    return report_of(folder_of(run, score=None, rcp=None, checks=()), kind="log", path=run.path)


def failed_run(number=0):
    path = Path(f"results/CPU_1x2/result_{number}.txt")
    follows = EVALS.error("no eval_accuracy in the run", path=path)
    aborted = STATUS.error(
        "run_stop has status 'aborted'", expected="status 'success'", mend="run again, to the target", path=path,
        line=12, text=':::MLLOG {"key": "run_stop"}', run_outcome=True, consequences=(follows,),
    )  # fmt: skip
    return run_of(number, findings=(aborted,), status="aborted", accuracy=0.31)


def warned_runs(number):
    return tuple(
        run_of(i, findings=(CACHE.warning("cache_clear is false", path=run_of(i).path, line=12 + i),))
        for i in range(number)
    )


def hostile_report():
    path = Path("results/<script>alert(2)</script>|`a`")
    finding = STATUS.error(HOSTILE, expected=HOSTILE, mend=HOSTILE, text=HOSTILE, path=path / "a|b.txt", line=1)
    finding = replace(finding, consequences=(EVALS.error(HOSTILE),))
    run = run_of(path=path / "a|b.txt", findings=(finding, SEED.note(HOSTILE)), status=HOSTILE, organisation=HOSTILE,
                 platform=HOSTILE, benchmark=HOSTILE, official=HOSTILE)  # fmt: skip
    return report_of(
        folder_of(run, path=path, system=HOSTILE, checks=(Check(HOSTILE, HOSTILE, HOSTILE),),
                  not_applicable=(HOSTILE,), findings=(SEED.error(HOSTILE),)),
        ruleset=HOSTILE, ruleset_from=HOSTILE,
    )  # fmt: skip


def empty_reports():
    nothing = dict.fromkeys(
        ("benchmark", "division", "organisation", "platform", "status", "seed", "batch", "minutes", "init_s",
         "samples", "samples_from", "accuracy", "eval_share", "startup_s")
    )  # fmt: skip
    bare = run_of(evaluations=(), **nothing)
    score = replace(
        folder_of(bare).score, minutes=(None,), mean_minutes=None, spread=None, samples=None, samples_per_s=None,
        num_accelerators=None, init_s=None, eval_share=None, startup_s=None, counts=False,
    )  # fmt: skip
    rcp = replace(folder_of(bare).rcp, low_batch=None, high_batch=None, mean=None, minimum=None, margin=None,
                  submission_mean=None)  # fmt: skip
    odd = run_of(accuracy=math.nan, minutes=math.inf, evaluations=(Evaluation(math.inf, None, math.nan),), samples=0)
    long = SEED.error("x" * 100_000 + " y" * 100_000)
    return {
        "no folder": report_of(),
        "no run": report_of(folder_of(score=None, rcp=None, checks=(), not_applicable=())),
        "bare log": log_report(bare),
        "bare folder": report_of(folder_of(bare, score=score, rcp=rcp)),
        "odd figures": report_of(folder_of(odd, findings=(long,))),
        "tree": report_of(folder_of(bare, score=score, rcp=rcp), folder_of(odd), kind="tree", findings=(long,)),
        "hostile": hostile_report(),
    }


class Page(HTMLParser):
    """Reads a page: fails where tags do not match, collects elements and what they refer to."""

    VOID = ("meta", "link", "rect", "path", "circle", "polyline", "wbr")

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.references, self.text = [], [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "action", "srcset", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def plain(report, **fields):
    return render_text(report, colour=False, **fields)


# --- text ---


def test_a_passed_log_is_four_lines():
    assert plain(log_report(run_of())).splitlines() == [
        "PASSED   results/CPU_1x2/result_0.txt, ruleset 5.0.0",
        "time     133.2 s from run_start to run_stop, after 1.0 s of initialisation",
        "accuracy 0.3915 masked-LM after 35,200 samples",
        "speed    264.3 samples/s",
    ]


def test_a_failed_log_tells_cause_place_and_fix():
    lines = plain(log_report(failed_run())).splitlines()
    assert lines[0] == "FAILED   results/CPU_1x2/result_0.txt, ruleset 5.0.0"
    assert "below the target 0.3900" in lines[2]
    assert lines[4:] == [
        "",
        "error    run_stop has status 'aborted'",
        "         results/CPU_1x2/result_0.txt:12",
        '         > :::MLLOG {"key": "run_stop"}',
        "         expected status 'success'",
        "         fix      run again, to the target",
        "         [run_stop.status, training_rules.adoc 4]",
        "         and 1 more that only follow from it (eval_accuracy.exists)",
    ]


def test_verbose_lists_consequences_and_places():
    assert "no eval_accuracy in the run" not in plain(log_report(failed_run()))
    assert "no eval_accuracy in the run" in plain(log_report(failed_run()), verbose=True)
    report = report_of(folder_of(*warned_runs(12)))
    assert "result_11.txt:23" not in plain(report)
    assert "result_11.txt:23" in plain(report, verbose=True)


def test_the_worst_finding_comes_first():
    run = run_of(findings=(SEED.note("a note"), CACHE.warning("a warning"), STATUS.error("an error")))
    text = plain(log_report(run))
    assert text.index("an error") < text.index("a warning") < text.index("a note")


def test_colours_only_when_asked_for():
    report = log_report(failed_run())
    assert "\033" not in plain(report)
    coloured = render_text(report, colour=True)
    assert coloured.startswith("\033[1;31mFAILED")
    assert re.sub(r"\033\[[\d;]*m", "", coloured) == plain(report)


def test_a_folder_shows_runs_checks_reference_and_score():
    text = plain(report_of(folder_of(*(run_of(i) for i in range(10)))))
    assert "score    2.378 min, mean of 8 of 10 runs, scaled by 1.0500" in text
    assert re.search(r"result_0.txt +passed +2.220 +35,200 +0.3915 +264.3 +100  dropped, fastest", text)
    assert re.search(r"result_9.txt +passed .* dropped, slowest", text)
    assert "between the reference points 8 and 32" in text
    assert "35,200 samples without the extremes, 3.2 % above the minimum" in text
    assert "for information only in the open division" in text
    assert "264.3 samples/s, 132.2 for each of 2 accelerators" in text
    assert "(2.220) 2.230" in text
    assert re.search(r"power +not applicable: no power logs", text)
    assert "- system description: none was given" in text
    assert max(map(len, text.splitlines())) <= 100


def test_in_the_closed_division_the_reference_is_a_rule():
    rcp = replace(folder_of(run_of()).rcp, applies=True, passed=False, margin=-0.02)
    text = plain(report_of(folder_of(run_of(), rcp=rcp)))
    assert re.search(r"outcome +failed\n", text)
    assert ", 2.0 % below the minimum" in text


def test_a_folder_may_stand_with_a_failed_log():
    runs = (run_of(0), failed_run(1), run_of(2))
    text = plain(report_of(folder_of(*runs)))
    assert text.startswith("PASSED")
    assert "stands although result_1.txt failed" in text
    assert "stands although" not in plain(report_of(folder_of(*runs, findings=(SEED.error("no"),))))


def test_a_tree_sums_up_its_folders_first():
    bad = folder_of(failed_run(), path=Path("results/B"), findings=(SEED.error("two runs have seed 7"),))
    report = report_of(folder_of(run_of(), path=Path("results/A")), bad, kind="tree", path=Path("results"))
    lines = plain(report).splitlines()
    assert lines[0] == "FAILED   results, ruleset 5.0.0"
    summary = lines.index("folders")
    assert re.match(r"A +passed +1 +2.378 min +264.3  none", lines[summary + 2])
    assert re.match(r"B +failed +1 .* 2 errors", lines[summary + 3])
    assert lines.index("FAILED   B") > lines.index("PASSED   A") > summary


def test_a_tree_of_one_folder_names_the_folder():
    report = report_of(folder_of(run_of()), kind="tree", path=Path("submission"))
    assert "PASSED   results/CPU_1x2\n" in plain(report)
    report = replace(report, checks=(Check("repository", "fail", "no systems folder"),))
    for render in (plain, render_markdown, render_html, render_json):
        assert "no systems folder" in render(report)
    assert "CPU\\_1x2" in render_markdown(report)
    assert 'id="folder-0"' in render_html(report)


# --- grouping ---


def test_the_same_warning_of_all_logs_is_shown_once():
    for render in (plain, render_markdown, render_html):
        text = html.unescape(render(report_of(folder_of(*warned_runs(10))))).replace("\\_", "_")
        assert text.count("cache_clear is false") == 1
        assert "in 10 of 10 logs: result_0.txt:12, result_1.txt:13" in text


def test_few_different_messages_of_a_rule_stay_apart_and_many_do_not():
    findings = [SEED.error(f"seed {number} is odd", line=number) for number in range(1, 10)]
    assert len(groups(findings[:3])) == 3
    assert len(groups(findings[:4])) == 1
    assert len(groups([*findings[:3], SEED.warning("seed 9 is odd", line=9)])) == 4
    report = log_report(run_of(findings=tuple(findings)))
    assert "shown is the first; the others:\n         - line 2: seed 2 is odd\n" in plain(report)
    assert "- line 5: seed 5 is odd\n         - and 4 more" in plain(report)
    assert "- line 9: seed 9 is odd" in plain(report, verbose=True)


def test_a_finding_given_twice_is_shown_once():
    finding = SEED.error("two runs have seed 7")
    text = plain(report_of(folder_of(run_of(findings=(finding,)), findings=(finding,))))
    assert text.count("two runs have seed 7") == 1
    assert "findings 1 error\n" in text


# --- JSON ---


def test_json_has_everything():
    report = report_of(folder_of(failed_run(), run_of(1)))
    read = json.loads(render_json(report))
    folder = read["folders"][0]
    assert (read["schema"], read["verdict"], folder["verdict"]) == (1, "passed", "passed")
    assert [run["verdict"] for run in folder["runs"]] == ["failed", "passed"]
    finding = folder["runs"][0]["findings"][0]
    assert (finding["severity"], finding["line"]) == ("error", 12)
    assert finding["rule"]["id"] == "run_stop.status"
    assert finding["path"] == "results/CPU_1x2/result_0.txt"
    assert finding["consequences"][0]["message"] == "no eval_accuracy in the run"
    assert folder["score"]["scaled_minutes"] == pytest.approx(2.37825)
    assert folder["runs"][1]["evaluations"][0]["samples"] == 4_000
    assert folder["rcp"]["margin"] == 0.0323
    for record, model in ((read, report), (folder, report.folders[0]), (folder["runs"][0], report.folders[0].runs[0])):
        assert set(vars(model)) <= set(record)


def test_json_has_no_nan_and_keeps_texts_whole():
    def refuse(constant):
        raise AssertionError(constant)

    read = json.loads(render_json(empty_reports()["odd figures"]), parse_constant=refuse)
    assert read["folders"][0]["runs"][0]["accuracy"] is None
    assert read["folders"][0]["runs"][0]["evaluations"] == [{"seconds": None, "samples": None, "accuracy": None}]
    assert len(read["folders"][0]["findings"][0]["message"]) == 300_000
    hostile = json.loads(render_json(hostile_report()))
    assert hostile["folders"][0]["runs"][0]["status"] == HOSTILE


# --- Markdown ---


def test_markdown_says_verdict_cause_and_fix():
    text = render_markdown(log_report(failed_run()))
    assert text.startswith("# ❌ Failed: results/CPU\\_1x2/result\\_0.txt\n")
    assert "**Error: run\\_stop has status 'aborted'**" in text
    assert "- Fix: run again, to the target" in text
    assert '```text\n:::MLLOG {"key": "run_stop"}\n```' in text
    assert "<details><summary>and 1 more that only follow from it</summary>" in text


def test_markdown_escapes():
    escaped = escape(HOSTILE)
    assert not set("<>|`\n\x1b") & set(escaped)
    assert "://" not in escaped
    assert re.search(r"(?<!\\)[*\[\]]", escaped) is None
    assert escape("a\\|b") == "a&#92;&#124;b"
    assert code("```` x").startswith("`````text\n")


def test_markdown_tables_keep_their_columns():
    text = render_markdown(hostile_report())
    assert "<script" not in re.sub(r"`{3,}text\n.*?\n`{3,}", "", text, flags=re.S)
    tables = [block for block in text.split("\n\n") if block.startswith("| ")]
    assert len(tables) == 5
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


# --- HTML ---


@pytest.mark.parametrize("name", empty_reports())
def test_odd_reports_render_in_every_form(name):
    report = empty_reports()[name]
    for text in (plain(report), plain(report, verbose=True), render_markdown(report), render_html(report)):
        assert all(character.isprintable() or character == "\n" for character in text)
        assert len(text.encode()) < 60_000
    json.loads(render_json(report))
    Page(render_html(report))


def test_the_page_refers_to_nothing_and_runs_nothing():
    page = Page(render_html(hostile_report()))
    assert {"script", "img", "iframe", "object", "form"}.isdisjoint(page.tags)
    assert set(page.references) == {"data:,"}
    assert "<script>alert(1)</script>" in "".join(page.text)  # as text
    assert "url(http" not in render_html(hostile_report())


@pytest.mark.parametrize("page", ["<p><b></p></b>", "<p>", '<p onclick="x">a</p>'])
def test_a_malformed_page_would_be_noticed(page):
    with pytest.raises(AssertionError):
        Page(page)


def test_a_page_of_a_tree_links_to_its_folders():
    page = render_html(report_of(folder_of(run_of()), folder_of(failed_run()), kind="tree", path=Path("results")))
    links = [reference for reference in Page(page).references if reference.startswith("#")]
    assert links == ["#folder-0", "#folder-1"]
    assert all(f'id="{link[1:]}"' in page for link in links)


def test_cause_and_fix_stand_above_the_figures():
    text = "".join(Page(render_html(log_report(failed_run()))).text)
    order = [
        text.index(part) for part in ("✗ Failed\n", "run_stop has status", "run again", "133.2 s", "Accuracy over")
    ]
    assert order == sorted(order)


def test_plots_draw_every_run_and_mark_the_dropped():
    runs = (*(run_of(i) for i in range(4)), failed_run(4))
    folder = folder_of(*runs)
    curves, bars = accuracy_plot(folder, 100), time_plot(folder, "hatch-0")
    assert curves.count("<polyline") == 5
    assert "target 0.3900" in curves
    assert "minutes since run_start" in curves
    assert re.findall(r'class="bar (\w+)"', bars) == ["dropped", "counted", "counted", "counted", "failed"]
    assert bars.count('fill="url(#hatch-0)"') == 1
    assert "mean of the counted 2.265" in bars
    assert accuracy_plot(folder_of(run_of(evaluations=())), 100) == ""


def test_thinning_keeps_ends_and_extremes():
    curve = [Evaluation(float(i), i, 0.5 + (i == 5_000) - (i == 7_000)) for i in range(10_000)]
    thinned = thin(curve, 100)
    assert len(thinned) <= 102
    assert {curve[0], curve[5_000], curve[7_000], curve[-1]} <= set(thinned)
    assert thinned == sorted(thinned, key=lambda evaluation: evaluation.seconds)
    assert thin(curve[:100], 100) == curve[:100]


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 133.2), (0.31, 0.3915), (0.39, 0.39), (0, 999_999_999.0)])
def test_ticks_are_few_even_and_enclose(low, high):
    marks = ticks(low, high)
    assert marks[0] <= low + 1e-9
    assert marks[-1] >= high - 1e-9
    assert 2 <= len(marks) <= 8
    assert {round((b - a) / (marks[1] - marks[0]), 6) for a, b in itertools.pairwise(marks)} == {1.0}


def test_a_page_of_many_evaluations_stays_small():
    curve = tuple(Evaluation(0.01 * i, i, 0.3 + 0.1 * math.sin(i)) for i in range(100_000))
    findings = tuple(EVALS.error(f"evaluation {i} is early", line=i, path=Path("r.txt")) for i in range(20_000))
    runs = tuple(run_of(i, evaluations=curve, findings=findings if i == 0 else ()) for i in range(40))
    page = render_html(report_of(folder_of(*runs)))
    assert len(page.encode()) < 500_000
    assert len(plain(report_of(folder_of(*runs))).encode()) < 20_000


def test_words():
    assert words.duration(599.94) == "599.9 s"
    assert words.duration(2_592.6) == "43.21 min"
    assert words.plain("a\x00b\nc\u202e") == "a·b\nc·"
    assert words.fixed(None, 2) == "–"  # noqa: RUF001
    assert words.fixed(1e300, 2) == "1e+300"


CHROMIUM = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--window-size=1400,1000",
)  # fmt: skip
WRAPPER = """<!DOCTYPE html><body><script>
const frame = document.createElement("iframe");
frame.style = "width:{width}px;height:900px;border:0";
frame.srcdoc = {page};
frame.onload = () => {{
  const root = frame.contentDocument.documentElement;
  document.body.dataset.widths = root.scrollWidth + "/" + root.clientWidth;
}};
document.body.append(frame);
</script></body>"""


needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs chromium on PATH, to lay the page out"
)


def widths(folder, page, width):
    """Width of the page's content and of the frame it is laid out in, in pixels."""
    wrapper = folder / "wrapper.html"
    wrapper.write_text(WRAPPER.format(width=width, page=json.dumps(page).replace("<", "\\u003c")), "utf-8")
    said = subprocess.run(
        ["chromium", *CHROMIUM, f"--user-data-dir={folder / 'profile'}", "--dump-dom", wrapper.as_uri()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return tuple(map(int, re.search(r'data-widths="(\d+)/(\d+)"', said.stdout).groups()))


@needs_chromium
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("kind", ["folder", "hostile", "tree"])
def test_the_page_does_not_scroll_sideways(tmp_path, width, kind):
    folder = folder_of(*warned_runs(9), failed_run(9))
    reports = {"folder": report_of(folder), "hostile": hostile_report(), "tree": report_of(folder, folder, kind="tree")}
    content, frame = widths(tmp_path, render_html(reports[kind]), width)
    assert content <= frame
    assert width - 20 <= frame <= width


@needs_chromium
def test_a_page_whose_tables_do_not_scroll_would_be_noticed(tmp_path):
    page = render_html(report_of(folder_of(*warned_runs(10))))
    content, frame = widths(tmp_path, page.replace("overflow-x: auto", ""), 360)
    assert content > frame
