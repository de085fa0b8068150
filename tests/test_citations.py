"""Docstrings cite the equations of mathematics.md, in one format, and nothing that is not in the repository."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from runs import ROOT

PACKAGES = ("pipeline", "features", "storage")
MATHEMATICS = ROOT / "pipeline" / "solvers" / "mathematics.md"
CITATION = re.compile(r"mathematics\.md, (?:eq\. (\d+)|eqs\. (\d+(?:, \d+)* and \d+))(?!\d)")
DOCUMENT = re.compile(r"[\w./-]*\w\.(?:md|rst|tex|pdf)\b")
STEPS = {12, 14, 16, 17, 62}  # equations on the way to others, which no function computes


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring, on one line, of a module and of every class and function in it."""

    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, " ".join((ast.get_docstring(node) or "").split())
        for child in ast.iter_child_nodes(node):
            inner = getattr(child, "name", "") if isinstance(child, ast.ClassDef | ast.FunctionDef) else ""
            yield from walk(child, ".".join(filter(None, (name, inner))))

    return walk(ast.parse(path.read_text(encoding="utf-8")), "")


def cited(docstring: str) -> set[int]:
    return {int(number) for match in CITATION.finditer(docstring) for number in re.findall(r"\d+", match[0])}


@functools.cache
def numbered() -> list[int]:
    """The numbers at the ends of the lines of formulas, as they come."""
    formulas = re.findall(r"^```\n(.*?)^```$", MATHEMATICS.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [int(number) for block in formulas for number in re.findall(r" \((\d+)\)$", block, flags=re.MULTILINE)]


def is_in_repository(document: str) -> bool:
    """Return whether a document that is named, with its folder or without, is one of ours."""
    if "/" in document or (ROOT / document).is_file():
        return (ROOT / document).is_file()
    return any(True for folder in (*PACKAGES, "jobs") for _ in (ROOT / folder).rglob(document))


def test_every_equation_has_a_number_of_its_own_and_references_within_the_page_exist() -> None:
    assert len(set(numbered())) == len(numbered())
    referred = {int(number) for number in re.findall(r"\((\d+)\)", MATHEMATICS.read_text(encoding="utf-8"))}
    assert referred <= set(numbered())


def test_what_is_cited_exists_and_every_equation_is_cited_where_it_is_computed() -> None:
    found_equations = set[int]()
    sources = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    assert len(sources) > 100
    for path, name, docstring in ((source, *found) for source in sources for found in docstrings(source)):
        where = f"{path.relative_to(ROOT)}, {name or 'module'}"
        assert cited(docstring) <= set(numbered()), f"{where} cites an equation that is not there"
        found_equations |= cited(docstring)
        assert docstring.count("mathematics.md") == len(CITATION.findall(docstring)), (
            f"{where} names mathematics.md without 'mathematics.md, eq. N' or 'mathematics.md, eqs. N and M'"
        )
        missing = [document for document in DOCUMENT.findall(docstring) if not is_in_repository(document)]
        assert not missing, f"{where} cites {missing}, which the repository does not have"
    assert set(numbered()) - found_equations == STEPS
