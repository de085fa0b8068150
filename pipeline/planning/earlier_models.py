"""Runs that begin where another ended: on its weights (`--init-from MODEL`), or with its rows too (`--add-rows`)."""

from dataclasses import replace
from pathlib import Path

from features.descriptors.extraction import parameters
from pipeline.config.settings import Loaded, grown, with_value
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import names_of_data
from pipeline.errors import ConfigError, ConfigMismatchError, MissingRunError
from pipeline.kernels.kernel_forms import Kernel
from pipeline.planning.plan import Prepared
from pipeline.prediction.streamed_prediction import locate
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.runtime import run_folder
from pipeline.stages import earlier_run, final_weights
from pipeline.stages.kernel_settings import kernels_of
from storage.arrays import read_arrays
from storage.folder_layouts import MANIFEST_NAME, RunLayout
from storage.records import digest_of, read_record


def settings_of_grown(loaded: Loaded) -> TrainConfig:
    """Return the settings of a run that adds rows: those of the run it starts from, and the resources asked for.

    Raises ConfigError where no suitable run is named, MissingRunError where it is not finished, ConfigMismatchError
    where other settings were asked for.
    """
    path = loaded.config.solver.init_from
    if path is None:
        raise ConfigError("--add-rows needs --init-from RUN, the finished run whose rows the new ones join")
    if len(loaded.config.data.add_rows or ()) > 1:
        raise ConfigError("--add-rows names more than one file; add one after the other, each to the run before")
    layout = RunLayout(Path(path))
    if not layout.report.exists():
        raise MissingRunError(f"--init-from {path}: holds no finished run, which --add-rows needs; train it to its end")
    config = grown(run_folder.frozen_config(layout), loaded)
    if config.data.weights is not None or config.data.class_weight is not None:
        raise ConfigError(f"--add-rows: rows or classes of {path} have weights; train on all rows anew")
    centers = read_arrays(layout.centers, mapped=True)
    if config.centers.on_demand:
        raise ConfigError(f"--add-rows: {path} has no Gram of all candidates to add to; train on all rows anew")
    if "X" not in centers:
        why = "did not fit" if config.solver.select == "none" else "was not made, or only over a sample of its rows"
        raise ConfigError(
            f"--add-rows: the Gram of all candidates of {path} {why}, so that it has no statistics to add to; "
            "train on all rows anew"
        )
    return with_value(config, "centers.count", len(centers["index"]))  # all of the rows were all of fewer


def checked(prepared: Prepared, root: Path) -> Prepared:
    """Return the plan, with a note where rows are added. Raises ConfigMismatchError where earlier data changed."""
    config, shape = prepared.config, prepared.shape
    if config.data.add_rows is None or (RunLayout(root).centers / MANIFEST_NAME).exists():
        return prepared
    layout = earlier_run.layout_of(config.solver.init_from)
    earlier = run_folder.frozen_config(layout)
    earlier_rows = earlier.data.add_rows or ()
    source = dict(shape.description["source"])
    source["added"] = source["added"][: len(earlier_rows)]
    if not source["added"]:
        del source["added"]
    if digest_of({**shape.description, "source": source}) != read_record(layout.environment)["features"]:
        raise ConfigMismatchError(
            f"{names_of_data(earlier)}: no longer the data that {layout.root} was trained on; restore them, or train "
            "on all rows anew"
        )
    n_new = sum(shape.added[len(earlier_rows) :])
    kept = (
        "candidates and statistics are taken"
        if earlier_run.statistics_digest(layout)
        else "candidates are taken; it has not kept its statistics: all rows are passed over"
    )
    note = f"{n_new} rows are added to the {shape.n_train - n_new} of {layout.root}, whose {kept}"
    return replace(prepared, notes=(*prepared.notes, note))


def open_start(prepared: Prepared, root: Path) -> SparseKernelModel | None:
    """Return the model to start from, with its weights before a refit where known.

    None where no model is asked for, a resumed run holds what it needs, or rows are added. Raises MissingRunError,
    CorruptDataError or ModelFormatError, and ConfigError for a model of other data, features or kernel, or whose
    centers are no training rows.
    """
    path = prepared.config.solver.init_from
    if path is None or prepared.config.data.add_rows or RunLayout(root).init_model.exists():
        return None
    located = locate(Path(path))
    model = located.model
    for what, of_model, of_run in _compared(model, prepared):
        if of_model != of_run:
            raise ConfigError(
                f"--init-from {path}: {what}: the model has {of_model!s:.100}, this run {of_run!s:.100}; name a model "
                "that was trained alike, or leave it out"
            )
    if model.n_centers and (model.center_index < 0).all():
        raise ConfigError(
            f"--init-from {path}: none of its {model.n_centers} centers is a training row (--polish-centers moves "
            "them), and so none a candidate; name a model whose centers stayed, or leave it out"
        )
    return model if located.layout is None else _penalised(model, located.layout)


def _penalised(model: SparseKernelModel, layout: RunLayout) -> SparseKernelModel:
    """Return the model of a run with its weights before a refit: the refitted ones are far from any optimum."""
    if not (layout.root / final_weights.NAME).exists():
        return model
    final = final_weights.load(layout)
    same = final.penalised_weights.shape == model.weights.shape
    return model.with_weights(final.penalised_weights, final.penalised_intercept) if same else model


def _compared(model: SparseKernelModel, prepared: Prepared) -> list[tuple[str, object, object]]:
    """Return what must be equal: its name, the model's, the run's."""
    request, shape, kernel = prepared.request, prepared.shape, prepared.config.kernel
    return [
        ("task", model.task, shape.task),
        ("labels", list(model.labels), list(shape.classes)),
        ("features", parameters(model.features), parameters(request.features)),
        ("z-scored inputs", model.standardisation is not None, request.standardise),
        ("number of features", model.centers.shape[1], shape.n_features),
        ("learned scales of the features", model.feature_scales is not None, False),
        ("kernel", _kernel(model.kernel), _kernel(kernels_of(kernel)[0])),
    ]


def _kernel(kernel: Kernel) -> str:
    return f"{kernel.name} of degree {kernel.degree}" if kernel.name == "polynomial" else kernel.name
