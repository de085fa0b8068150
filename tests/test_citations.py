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
# Where a reader who knows the paper looks first, and the equations that he must find there.
KEY_FUNCTIONS = {
    "pipeline.kernels.column_generator:ColumnGenerator": {1},
    "pipeline.kernels.kernel_forms:GaussianForm": {2, 3},
    "pipeline.kernels.gram_statistics:GramStatistics": {7},
    "pipeline.kernels.gram_statistics:GramStatistics.centred": {58},
    "pipeline.solvers.coordinate_descent:factorise": {21, 28},
    "pipeline.solvers.coordinate_descent:objective": {27},
    "pipeline.solvers.coordinate_descent_loops:score": {23},
    "pipeline.solvers.coordinate_descent_loops:curvature": {24, 25},
    "pipeline.solvers.coordinate_descent_loops:coordinate_step": {30, 31},
    "pipeline.solvers.coordinate_descent_loops:change": {33},
    "pipeline.solvers.coordinate_descent_loops:leave": {34},
    "pipeline.solvers.coordinate_descent_loops:enter": {35},
    "pipeline.models.calibration:probabilities": {75},
    "pipeline.models.calibration:best_temperature": {76, 77},
    "pipeline.models.calibration:LossSlopes": {77},
    "pipeline.models.calibration:Calibration.expected_error": {78},
    "pipeline.models.kernel_expansion:KernelExpansion": {6},
    "pipeline.prediction.trained_model:SparseKernelModel.decision_function": {6},
    "pipeline.solvers.duality_gap:certify": {44},
    "pipeline.solvers.duality_gap:_residual_norm_squared": {45},
    "pipeline.solvers.duality_gap:gap_safe_screen": {47},
    "pipeline.solvers.active_set_newton:minimise": {54},
    "pipeline.solvers.active_set_newton:segment_minimum": {55},
    "pipeline.solvers.group_newton:newton_step": {56, 57},
    "pipeline.solvers.regularization_path:penalty_max": {51},
    "pipeline.solvers.ridge:least_squares": {60},
    "pipeline.solvers.working_set_rules:cannot_be_active": {48},
    "pipeline.kernels.scaled_features:scaled": {79, 87},
    "pipeline.solvers.feature_scales:Derivatives": {80},
    "pipeline.solvers.feature_scales:next_scales": {81, 88},
    "pipeline.solvers.feature_scales:largest_product": {89},
    "pipeline.solvers.bandwidth_choice:refine": {82},
}


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
    """Tell whether a document that is named, with its folder or without, is one of ours."""
    if "/" in document or (ROOT / document).is_file():
        return (ROOT / document).is_file()
    return any(True for folder in (*PACKAGES, "jobs") for _ in (ROOT / folder).rglob(document))


def test_every_equation_has_a_number_of_its_own() -> None:
    assert sorted(numbered()) == list(range(1, max(numbered()) + 1))


def test_references_within_the_page_exist() -> None:
    referred = {int(number) for number in re.findall(r"\((\d+)\)", MATHEMATICS.read_text(encoding="utf-8"))}
    assert referred <= set(numbered())


def test_citations_exist() -> None:
    sources = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    assert len(sources) > 100
    for path, name, docstring in ((source, *found) for source in sources for found in docstrings(source)):
        where = f"{path.relative_to(ROOT)}, {name or 'module'}"
        assert cited(docstring) <= set(numbered()), f"{where} cites an equation that is not there"
        assert docstring.count("mathematics.md") == len(CITATION.findall(docstring)), (
            f"{where} names mathematics.md without 'mathematics.md, eq. N' or 'mathematics.md, eqs. N and M'"
        )
        missing = [document for document in DOCUMENT.findall(docstring) if not is_in_repository(document)]
        assert not missing, f"{where} cites {missing}, which the repository does not have"


def test_a_key_function_cites_its_equation() -> None:
    for place, equations in KEY_FUNCTIONS.items():
        module, name = place.split(":")
        found = dict(docstrings(ROOT / f"{module.replace('.', '/')}.py"))
        assert equations <= cited(found[name]), f"{place} does not cite {sorted(equations)}"


def test_files_that_the_page_names_exist() -> None:
    """Relative to `pipeline/`."""
    prose = re.sub(r"^```.*?^```$", "", MATHEMATICS.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)*/(?:[\w-]+\.\w+)?)`", prose)
    assert named
    assert not [span for span in named if not (ROOT / "pipeline" / span).exists()]
