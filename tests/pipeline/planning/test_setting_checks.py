"""Settings that cannot go together: refused before anything is made, in a line that names them."""

import pytest

from runs import train

REFUSED = [
    (["--select", "greedy:501"], "there are 500 candidates"),
    (["--select", "greedy:9", "--penalty", "1"], "--penalty has no effect"),
    (["--select", "greedy:9", "--refit", "none"], "--refit none has no effect"),
    (["--select", "greedy:9", "--schedule", "uniform"], "--schedule has no effect"),
    (["--select", "greedy:9", "--set", "statistics.hold_out=0"], "needs held-out rows"),
    (["--select", "greedy:300", "--set", "centers.working_set=400"], "choose at most 266 centers"),
    (["--select", "greedy:auto", "--set", "centers.working_set=400"], "choose at most 266 centers"),
    (["--sigma2", "auto", "--set", "statistics.hold_out=0"], "--sigma2 auto needs held-out rows"),
    (["--scale", "metric"], "for at most 200 features, there are"),
    (["--scale", "learned", "--set", "statistics.hold_out=0"], "--scale learned needs held-out rows"),
    (["--set", "kernel.scale_rounds=3"], "kernel.scale_rounds has no effect"),
    (["--kernel", "auto", "--sigma2", "2"], "--kernel auto also chooses the width; give it --sigma2 auto"),
    (["--refit", "ridge", "--set", "statistics.hold_out=0"], "hold_out"),
    (["--penalty", "auto", "--set", "statistics.hold_out=0"], "hold_out"),
    (["--set", "solver.stop=paper"], "uniform"),
    (["--features", "raw", "--set", "data.standardise=true", "--set", "features.deskew=1"], "z-scored or sheared"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_what_makes_no_sense_is_refused(features, tmp_path, capsys, arguments, words):
    train(tmp_path / "run", features, *arguments, code=2)
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
