"""The pages of docs/: the site builds without a warning, its links lead somewhere, and every setting is on it."""

import html
import importlib.util
import re
from pathlib import Path

import pytest

from pipeline.config.settings import SETTINGS
from runs import ROOT, python


def test_every_setting_has_a_row_and_a_sentence() -> None:
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "docs" / "settings_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.settings_page()
    rows = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in page.splitlines() if line.startswith("| `")]
    assert all(len(row) == 4 for row in rows)
    by_key = {re.findall("`([^`]+)`", row[0])[0]: row for row in rows}
    for key, setting in SETTINGS.items():
        assert setting.flag is None or setting.flag in by_key[key][0]
        assert by_key[key][1]
        assert by_key[key][2].strip("`")
        assert len(by_key[key][3].split()) >= 3, f"{key} has no sentence"
        assert by_key[key][3].endswith("."), key


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors: of links to no page or heading, and of docstrings among them."""
    pytest.importorskip("sphinx", reason="sphinx is not installed (requirements-dev.lock has it)")
    folder = tmp_path_factory.mktemp("site")
    done = python(
        "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", folder / "trees", ROOT / "docs", folder / "html"
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "html"


@pytest.mark.ci
def test_links_within_the_site_lead_to_a_place(site: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    named = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    n_links = 0
    for page, text in texts.items():
        for link in map(html.unescape, re.findall(r'<a [^>]*href="([^"]+)"', text)):
            if re.match(r"\w+:", link):
                continue
            file, _, place = link.partition("#")
            target = page if not file else site / file
            n_links += 1
            assert target.exists(), f"{page.name} links to {link}"
            assert not place or target.suffix != ".html" or place in named[target], f"{page.name} links to {link}"
    assert n_links > 100


@pytest.mark.ci
def test_every_setting_is_on_the_page_of_options(site: Path) -> None:
    page = re.sub(r"<[^>]+>", "", (site / "options.html").read_text(encoding="utf-8"))
    assert all(key in page for key in SETTINGS)


@pytest.mark.ci
def test_every_public_class_is_on_the_page_of_the_api(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in ("train.train", "estimators.SLKLClassifier", "estimators.SLKLRegressor"):
        assert f'id="pipeline.{name}"' in page


@pytest.mark.ci
def test_the_mathematics_and_the_clusters_are_pages(site: Path) -> None:
    """Their texts stand elsewhere, and are included."""
    for page, words in (("mathematics", "Kernel columns"), ("clusters", "SLURM")):
        assert words in (site / f"{page}.html").read_text(encoding="utf-8")
