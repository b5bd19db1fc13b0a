"""The clean-up of WikiExtractor's output: titles, tags and left-over markup go, text stays as it is."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks.bert.prepare.clean import paragraphs, without_markup

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "reference_samples"
EXTRACTED = """<doc id="1" url="u" title="One">
One

First paragraph.

Second one.


</doc>
<doc id="2" url="u" title="Empty">
Empty

</doc>
<doc id="3" url="u" title="Three">
Three

Last.
</doc>
"""


def cleaned(line: str) -> list[str]:
    return list(without_markup([f"{line}\n"]))


def test_paragraphs_stay_and_an_empty_line_stands_before_each_document() -> None:
    found = "".join(paragraphs(EXTRACTED.splitlines(keepends=True)))
    assert found == "\nFirst paragraph.\nSecond one.\n\n\nLast.\n"


def test_a_line_after_a_document_tag_is_its_title_whatever_it_holds() -> None:
    assert list(paragraphs(["x <doc\n", "</doc>\n", "text\n"])) == ["\n", "text\n"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain text, 1 < 2", "plain text, 1 < 2"),
        ("[[target]] and [[target|text]]", "target and text"),
        ("[[a|[[b|c]]]]", "c"),
        ("he [sic] wrote [...]", "he sic wrote ..."),
        ("]pe-rjo-[", "]pe-rjo-["),
        ("a [[File:x.png|thumb|b]] c", "a  c"),
        ("a [[Image:x.png]] c", "a Image:x.png c"),
        ("alt=text", "text"),
        ("H<chem>2</chem>O", "H>2O"),
        ("a<ref name=b>c</ref>d", "ad"),
        ("a<ref name=b/>c", "ac"),
        ("a<br>b<BR>c<Br>d</br>", "abcd"),
        ('a<section begin="x"/>b', "ab"),
        ("a<section \\ />b", "a<section \\ />b"),
        ('<div class="x">a</div>', "a"),
        ("<math>x</math> <sup>2</sup> <nowiki>[[a]]</nowiki>", "x 2 a"),
        ("<poem lang=x>a</poem>", "a"),
        ("<graph>{a}</graph>", ""),
        ("<<br>ref>a", "<ref>a"),  # the edits do not start anew
    ],
)
def test_markup_is_edited_out(line: str, expected: str) -> None:
    assert cleaned(line) == [f"{expected}\n"]


@pytest.mark.parametrize("line", ["[[Category:Things]]", "text [[Category:Things|x]] text", '<doc id="1">'])
def test_lines_with_a_category_or_a_document_tag_go(line: str) -> None:
    assert cleaned(line) == []


def test_a_last_line_without_an_end_gets_one() -> None:
    assert list(without_markup(["a\n", "b"])) == ["a\n", "b\n"]


def step(name: str) -> str:
    path = REFERENCE / f"a_step{name}.txt.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there: the reference's steps lie beside the checkout")
    return gzip.decompress(path.read_bytes()).decode()


def test_both_steps_give_the_references_bytes() -> None:
    first = list(paragraphs(step("0_raw_30docs").splitlines(keepends=True)))
    assert "".join(first) == step("1_cleanup_file")
    assert "".join(without_markup(first)) == step("2_clean_sh")


def test_the_reference_differs_where_a_step_is_left_out() -> None:
    assert step("1_cleanup_file") != step("2_clean_sh")
