"""The model that the solves of a run start from (`--init-from`), checked against the run before it starts."""

from pathlib import Path

from features.descriptors.descriptor import parameters
from pipeline.errors import ConfigError
from pipeline.kernels.kernel_forms import Kernel
from pipeline.planning.plan import Prepared
from pipeline.prediction.streamed_prediction import locate
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.stages import final_weights
from storage.folder_layouts import RunLayout


def open_start(prepared: Prepared, root: Path) -> SparseKernelModel | None:
    """Return the model to start from, with the weights it had before a refit where they are known.

    None where no model is asked for, or the run in `root` holds what it needs of it, or rows are added to those of the
    model's run, whose candidates stay.

    Raises MissingRunError where there is no model, CorruptDataError or ModelFormatError for a damaged one, ConfigError
    for one of other data, features or kernel, or whose centers are no training rows.
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
        ("kernel", _kernel(model.kernel), _kernel(Kernel(kernel.name, kernel.degree))),
    ]


def _kernel(kernel: Kernel) -> str:
    return f"{kernel.name} of degree {kernel.degree}" if kernel.name == "polynomial" else kernel.name
