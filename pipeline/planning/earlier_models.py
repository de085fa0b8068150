"""Runs whose solves start from the weights of another model (`--init-from MODEL`)."""

from pathlib import Path

from features.descriptors.extraction import parameters
from pipeline.errors import ConfigError
from pipeline.kernels.kernel_forms import Kernel
from pipeline.planning.plan import Prepared
from pipeline.prediction.streamed_prediction import locate
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.stages import final_weights
from pipeline.stages.kernel_settings import kernels_of
from storage.folder_layouts import RunLayout


def open_start(prepared: Prepared, root: Path) -> SparseKernelModel | None:
    """Return the model to start from, with its weights before a refit where known.

    None where no model is asked for, or a resumed run holds what it needs. Raises MissingRunError,
    CorruptDataError or ModelFormatError, and ConfigError for a model of other data, features or kernel, or whose
    centers are no training rows.
    """
    path = prepared.config.solver.init_from
    if path is None or RunLayout(root).init_model.exists():
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
