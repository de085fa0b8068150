"""What commands say of what they cannot take: one line with its key words, an exit code, and nothing left behind."""

import os
import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from commands import TARGETS, Runs, X, code_of, flip, the_error
from pipeline.prediction import predictor
from runs import files_of
from storage.files import read_record, write_record

Y = TARGETS["regression"]
WEIGHTS = np.ones(len(X))
TABLE = "a,b,y\n" + "".join(f"{k},{k % 7},{k % 5}\n" for k in range(40))
TEXTS = "a,b\n" + "1.5,2.5\n" * 30 + "1,abc\n"
LATE = "a,b,y\n" + "1,2,far\n" * 60 + "1,2,x\n"
PICTURES = np.arange(60 * 64).reshape(60, 8, 8).astype(np.uint8)
PIPES = ("pipe.csv", "pipe.npz", "pipe.parquet")  # of which a reader that opens one waits for ever


def changed(values: np.ndarray, row: int, value: float) -> np.ndarray:
    """Return values of which the last of a row is another."""
    values = values.astype(float)
    values[row, ...] = value
    return values


KINDS = np.arange(300) % 3
SPREAD = np.random.default_rng(0).normal(size=(300, 2)) + KINDS[:, None]
GROUPED = {f"{name}_{part}": of for name, of in (("X", SPREAD), ("y", KINDS)) for part in ("train", "test")}
GROUPED |= {"one_train": np.zeros(300), "label_train": KINDS, "half_train": KINDS > 0}
EQUAL = {"X": np.ones((26, 2)), "y": Y[:26]}
GROUPS = {  # which leave nothing to choose by
    "one": "all 300 samples are of one group; give more groups",
    "label": "by groups label the other rows lack their labels",
    "half": "or have one label alone; give groups of several labels",
}


class Case(NamedTuple):
    """A command line, in which {data} is a file of arrays or of a text; its exit code, and key words of what it says.

    Names in braces are places: runs by their tasks, folders of `places`, and {out}, which is new and empty.
    """

    line: str
    code: int
    words: str
    data: dict[str, Any] | str = ""


TRAIN = "train {data} -q --run-dir {out}/run --features-dir {out}/f"
DIGITS = "train digits --run-dir {out}/run"
DRY = "train {data} --dry-run"
CONFIG = "train digits --config {data} --print-config"
WEIGHTED = TRAIN + " --set data.weights=w"
MOVE = "--centers 50 --move-centers 3"
# Settings of a training on digits that make no sense together.
TOGETHER = {
    "--select greedy:1001": "there are 1000 candidates",
    "--select greedy:9 --penalty 1": "--penalty 1.0 has no effect",
    "--select greedy:9 --refit none": "--refit none has no effect",
    "--select greedy:9 --schedule uniform": "--schedule uniform has no effect",
    "--select greedy:9 --set statistics.hold_out=0": "needs held-out rows",
    "--select greedy:300 --set centers.working_set=400": "needs the Gram of all 1000 candidates",
    "--penalty auto --set centers.working_set=400": "--penalty auto needs the Gram of all candidates",
    "--sigma2 auto --set statistics.hold_out=0": "--sigma2 auto needs held-out rows",
    "--scale metric": "for at most 200 features, there are",
    "--scale learned --set statistics.hold_out=0": "--scale learned needs held-out rows",
    "--kernel auto --sigma2 2": "--kernel auto also chooses the width; give it --sigma2 auto",
    "--kernel auto --sigma2 auto --set statistics.hold_out=0": "--kernel auto needs held-out rows",
    "--penalty none --set statistics.hold_out=0": "--penalty none needs held-out rows",
    "--penalty none --refit none": "has no effect with --penalty none",
    "--centers 10 --set centers.budget=4s": "leave one out",
    "--set data.deform=flip": "data.deform is how copies are deformed, and there are none: give --copie",
    "--refit ridge --set statistics.hold_out=0": "hold_out",
    f"{MOVE} --penalty 1": "add --select greedy:K or --refit ridge",
    f"{MOVE} --penalty none": "add --select greedy:K, or --penalty auto and --refit ridge",
    f"{MOVE} --select greedy:15 --kernel product-laplace": "no gradient for --kernel product-laplace",
    "--set centers.columns=on-demand --penalty auto": "on-demand is for one penalty",
    "--set centers.columns=on-demand --penalty none": "on-demand is for one penalty",
    "--features raw --set data.standardise=true --set features.deskew=1": "z-scored as they are",
}
OUT = "{data} --out {out}/out.csv"
PREDICT = f"predict {{words}} {OUT}"
EVALUATE = "evaluate {words} {data} --json"
CASES = {
    "train: no data": Case("train", 2, "no data are named"),
    "train: unknown data": Case("train nonesuch --run-dir {out}/run", 2, "nonesuch"),
    "train: no such file": Case("train absent/file.npz --run-dir {out}/run", 66, "file.npz"),
    "train: an unknown option": Case(f"{DIGITS} --colour red", 2, "--colour red"),
    "train: an option almost right": Case(f"{DIGITS} --center=9", 2, "did you mean --centers?"),
    "train: a key almost right": Case(f"{DIGITS} --set solver.penatly=1", 2, "solver.penalty"),
    "train: more centers than rows": Case(f"{DIGITS} --centers 100000", 2, "1348"),
    "train: too little memory": Case(f"{DIGITS} --memory-limit 100MiB", 71, "--memory-limit"),
    "train: nothing to resume": Case(f"{DIGITS} --resume require", 66, "holds no run"),
    "train: a run of another version": Case("train x --run-dir {old} --resume auto", 78, "is of another version"),
    "train: a run as data": Case("train {words} --run-dir {out}/run", 2, "a run; continue it with --run-dir"),
    "evaluate: a run of another version": Case("evaluate {old}", 78, "is of another version"),
    "train: a scheduler without a key": Case(f"{DIGITS} --scheduler tls://127.0.0.1:9", 2, "COMM__TLS__CLIENT__KEY"),
    "train: a setting without effect": Case(f"{DIGITS} --set data.drop=a", 2, "no effect"),
    "train: features in the run": Case(f"{DIGITS} --features-dir {{out}}/run/f", 2, "inside"),
    "train: the run in the features": Case(f"{DIGITS} --features-dir {{out}}", 2, "inside"),
    **{f"train: {words}": Case(f"{DIGITS} {words}", 2, told) for words, told in TOGETHER.items()},
    "train: a test part of a named set": Case("train sinc --test x.csv --dry-run", 2, "--test has no effect"),
    "train: copies of a named table": Case("train sinc --copies 2 --dry-run", 2, "--copies 2 is for images"),
    "train: a header of arrays": Case(f"{DRY} --set data.header=false", 2, "data.header has no", {"X": X, "y": Y}),
    "train: copies of rows": Case(f"{DRY} --copies 2", 2, "--copies has no effect on", TABLE),
    "train: no test file": Case(f"{DRY} --test none.csv", 66, "none.csv: no such file", TABLE),
    "train: a test file that is none": Case(f"{DRY} --test {{text.txt}}", 2, "file type not known", TABLE),
    "train: a share of a test file": Case(
        f"{DRY} --test {{data}} --set data.test_fraction=0.5", 2, "test_fraction has no effect", TABLE
    ),
    "train: a column twice": Case(f"{DRY} --set data.columns=a,a", 2, "names of columns, each once", TABLE),
    "train: parts on two scales": Case(
        TRAIN,
        65,
        "X_train has images from 0 to 255, X_test from 0 to 1; shift, multiply or divide",
        {"X_train": PICTURES, "y_train": Y[:60], "X_test": PICTURES / 255.0, "y_test": Y[:60]},
    ),
    "config: a key almost right": Case(CONFIG, 2, "data.csv; did you mean solver.penalty?", "[solver]\npenatly = 1\n"),
    "config: no TOML": Case(CONFIG, 2, "cannot read configuration file", "[solver\n"),
    "config: other data": Case(CONFIG, 2, "the command names digits", 'dataset = "mnist"\n'),
    "config: no file": Case("train --config {out}/c.toml", 66, "c.toml: no such configuration file"),
    "config: thousands of digits": Case(CONFIG, 2, "4300 digits", f"seed = {'9' * 5000}"),
    "config: deep lists": Case(CONFIG, 2, "nested too deeply", "seed = " + "[" * 50_000),
    "config: NUL in a path": Case(CONFIG, 2, "without control characters", '[resources]\nfeatures_dir = "a\\u0000b"'),
    "config: no UTF-8": Case(CONFIG, 2, "utf-8", "seed = 1 # \udcff"),
    "train: image features of a table": Case(f"{TRAIN} --features sphog", 2, "raw", {"X": X, "y": Y}),
    "train: NaN": Case(TRAIN, 65, "row 37", {"X": changed(X, 37, np.nan), "y": Y}),
    "train: huge inputs": Case(TRAIN, 65, "column 0", {"X": 1e200 * X, "y": Y}),
    "train: huge features": Case(f"{TRAIN} --set data.standardise=false", 65, "row 0", {"X": 1e200 * X, "y": Y}),
    "train: huge targets": Case(TRAIN, 65, "targets are too large", {"X": X, "y": 1e160 * Y}),
    "train: tiny targets": Case(TRAIN, 65, "targets are too small", {"X": X, "y": 1e-170 * Y}),
    "weights: huge ones": Case(WEIGHTED, 65, "1e+101; rescale", {"X": X, "y": Y, "w": changed(WEIGHTS, 3, 1e101)}),
    "weights: only zeros": Case(WEIGHTED, 65, "all weights are zero", {"X": X, "y": Y, "w": 0 * WEIGHTS}),
    "weights: no such column": Case(WEIGHTED, 2, "is no column", "a,b,y\n1,2,3\n4,5,6\n"),
    **{
        f"groups: {groups}, {how}": Case(f"{TRAIN} --seed 1 --set data.groups={groups} {how}", 65, told, GROUPED)
        for groups, told in GROUPS.items()
        for how in ("", "--penalty auto", "--refit ridge --penalty 1")
    },
    **{
        f"equal rows: {how}": Case(f"{TRAIN} {how}", 65, "samples are equal; give rows that differ", EQUAL)
        for how in ("--select greedy:3", "--refit ridge", "--penalty auto")
    },
    "weights: classes of values": Case(f"{TRAIN} --class-weight balanced", 2, "is a regression", {"X": X, "y": Y}),
    **{
        f"{command}: a {name}": Case(f"{words} {{{name}}}{more}", 65, f"{name}: is a pipe, a device or a socket")
        for command, words, more in (
            ("train", "train", " -q --run-dir {out}/run"),
            ("predict", "predict {words}", " --out {out}/out.csv"),
            ("evaluate", "evaluate {words}", ""),
        )
        for name in PIPES
    },
    "predict: a pipe as a model": Case(f"predict {{piped}} {OUT}", 65, "model.npz", {"X": X}),
    "predict: other inputs": Case(PREDICT, 65, "(1,)", {"X": X[:, :1]}),
    "predict: NaN": Case(PREDICT, 65, "row 137, column", {"X": changed(X, 137, np.nan)}),
    "predict: a text in a csv": Case(PREDICT, 65, "line 32", TEXTS),
    "predict: more columns": Case(PREDICT, 65, "has 4 columns", "a,b,c,d\n1,2,3,4\n"),
    "predict: a target that is not there": Case(f"{PREDICT} --target z", 2, "'z'", "a,b,c\n1,2,3\n"),
    "predict: no such file": Case("predict {words} absent.npz --out {out}/out.csv", 66, "no such file"),
    "predict: an unknown type": Case("predict {words} {text.txt} --out {out}/out.csv", 2, "file type"),
    "predict: unknown data": Case("predict {words} nonesuch --out {out}/out.csv", 2, "nonesuch"),
    "predict: images for rows": Case("predict {words} digits --out {out}/out.csv", 65, "(28, 28)"),
    "predict: a part of one part": Case(f"{PREDICT} --part train", 2, "--part train", {"X": X}),
    "predict: a setting of a file": Case(f"{PREDICT} --set seed=2", 2, "--set", {"X": X}),
    "predict: a regression": Case(f"predict {{regression}} {OUT} --probabilities", 2, "no probabilities", {"X": X}),
    "predict: an interval of classes": Case(f"{PREDICT} --interval 0.9", 2, "the model is of classes", {"X": X}),
    "predict: labels of values": Case(
        f"predict {{regression}} {OUT} --labels 0.9", 2, "has no labels; use --interval", {"X": X}
    ),
    "predict: two folders": Case("predict {words} {rows} {empty} --out {out}/a.csv", 2, "name one folder, or files"),
    "predict: a level above the highest": Case(f"{PREDICT} --labels 0.999", 2, "highest level is 0.995", {"X": X}),
    "predict: a level for more rows": Case(f"{PREDICT} --labels 0.995", 2, "support levels up to", {"X": X}),
    "predict: a level in percent": Case(f"{PREDICT} --labels 95", 2, "between 0 and 1; found 95.0", {"X": X}),
    "predict: no centers to name": Case(f"{PREDICT} --explain 0", 2, "--explain 0: must be above 0", {"X": X}),
    "predict: no such model": Case(f"predict absent {OUT}", 66, "no such folder", {"X": X}),
    "predict: a run without a model": Case(f"predict {{unfinished}} {OUT}", 66, "train it to its end", {"X": X}),
    "predict: a damaged model": Case(f"predict {{damaged}} {OUT}", 65, "model.npz", {"X": X}),
    "predict: an unknown kind of output": Case("predict {words} {data} --out {out}/out.npz", 2, "suffix", {"X": X}),
    "predict: an output in no folder": Case("predict {words} {data} --out {out}/no/a.csv", 73, "no folder", {"X": X}),
    "predict: a folder for an output": Case(
        "predict {words} {data} --out {folder.csv} --force", 73, "folder", {"X": X}
    ),
    "predict: a pipe for an output": Case("predict {words} {data} --out {pipe.csv} --force", 73, "pipe", {"X": X}),
    "predict: an output in the run": Case(
        "predict {words} {data} --out {words}/b/../model/a.csv", 2, "lies in the folder of the model", {"X": X}
    ),
    **{
        f"predict: {data} replaced by {out}": Case(f"predict {{words}} {data} --out {out} --force", 2, "is the data")
        for data, out in (("{rows}", "{rows}/b.csv"), ("{rows}", "{rows}/c.csv"), ("{rows}/b.csv", "{rows}/b.csv"))
    },
    "evaluate: an unknown label late": Case(EVALUATE, 65, "row 60", LATE),
    "evaluate: an empty label": Case(EVALUATE, 65, "line 3", "a,b,y\n1,2,far\n1,2,\n"),
    "evaluate: no labels": Case(EVALUATE, 65, "no array y", {"X": X}),
    "evaluate: a value of NaN": Case("evaluate {regression} {data}", 65, "row 1", {"X": X[:2], "y": [1.0, np.nan]}),
    "evaluate: no model": Case("evaluate {words}/scores", 66, "holds no model"),
    "evaluate: a model without data": Case("evaluate {words}/model", 2, "DATA is missing"),
    "evaluate: a setting of no data": Case("evaluate {words} --set seed=1", 2, "DATA"),
    **{
        f"{command}: {place} has no run": Case(f"{command} {place}", 66, "holds no run; name the folder of one")
        for command in ("status", "report")
        for place in ("{empty}", "{text.txt}", "absent")
    },
    "report: a page that is none": Case("report {words} --out {text.txt}", 2, "exists and is no report"),
    "report: a page in the model": Case("report {words} --out {words}/model/x.html", 2, "--out"),
    "report: a page in no folder": Case("report {words} --out {out}/none/x.html", 73, "none/x.html"),
}

WITHIN = [f"train: {words}" for words in ("NaN", "huge inputs", "huge features", "huge targets", "tiny targets")]
WITHIN += [name for name in CASES if name.startswith(("groups", "equal rows"))]  # found by a run that has begun


@pytest.fixture(scope="module")
def places(rings: Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs by their tasks, damaged copies of one, and a text file and folders that are none of ours."""
    place = tmp_path_factory.mktemp("places")
    places = {name: place / name for name in ("unfinished", "damaged", "empty", "folder.csv", "text.txt", "rows")}
    shutil.copytree(rings["words"], places["unfinished"], ignore=shutil.ignore_patterns("model"))
    places["old"] = shutil.copytree(rings["words"], place / "old")
    write_record(place / "old" / "env.json", read_record(place / "old" / "env.json") | {"format_version": 2})
    shutil.copytree(rings["words"] / "model", places["damaged"])
    flip(places["damaged"] / "model.npz")
    for name in ("empty", "folder.csv", "rows"):
        places[name].mkdir()
    for name in ("a", "b"):
        np.savetxt(places["rows"] / f"{name}.csv", X, delimiter=",", header="u,v", comments="")
    places["text.txt"].write_text("1,2\n")
    places["piped"] = place / "piped"
    places["piped"].mkdir()
    os.mkfifo(place / "piped" / "model.npz")
    for name in PIPES:
        places[name] = place / name
        os.mkfifo(places[name])
    return places | rings


@pytest.mark.parametrize("name", CASES)
def test_one_line_tells_it_and_nothing_is_left(name, places, tmp_path, capsys, monkeypatch):
    """Predictions are of blocks of few rows, so that some are written by then."""
    monkeypatch.setattr(predictor, "MOST_BLOCK_ROWS", 20)
    case, out, data = CASES[name], tmp_path / "out", tmp_path / "data.csv"
    out.mkdir()
    if isinstance(case.data, str):
        data.write_bytes(case.data.encode(errors="surrogateescape"))
    else:
        data = data.with_suffix(".npz")
        np.savez(data, **case.data)
    line = shlex.split(case.line)
    for place, path in (places | {"out": out, "data": data}).items():
        line = [word.replace(f"{{{place}}}", str(path)) for word in line]
    before = files_of(places["text.txt"].parent)
    assert code_of(line) == case.code
    said = the_error(capsys)
    assert case.words in said
    assert len(said) < 500
    left = files_of(out)
    assert not left or name in WITHIN
    assert not [file for file in left if "report" in file or "model" in file]
    assert files_of(places["text.txt"].parent) == before
