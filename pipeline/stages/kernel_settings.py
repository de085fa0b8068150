"""The kernels that settings ask for, and what is refused of kernels, widths, scales and moved centers."""

from pipeline.config.parsers import NO_PENALTY, learns_scales
from pipeline.config.train_config import AUTO_KERNEL, KernelConfig, TrainConfig
from pipeline.errors import ConfigError
from pipeline.kernels.kernel_functions import KERNELS, METRIC, Kernel, kernel_named
from pipeline.solvers.kernel_trials import MOST_OF_METRIC


def kernels_of(kernel: KernelConfig) -> tuple[type[Kernel], ...]:
    """Return the kernels that are asked for, or tried."""
    return KERNELS if kernel.name == AUTO_KERNEL else (kernel_named(kernel.name or "gaussian"),)


def is_chosen(kernel: KernelConfig) -> bool:
    """Return whether kernel, width or scales are chosen by held-out rows."""
    return kernel.name == AUTO_KERNEL or learns_scales(kernel.scale) or kernel.sigma2 == "auto"


def check_kernel(config: TrainConfig, n_features: int) -> None:
    """Raise ConfigError where kernel, widths, scales and moved centers make no sense together."""
    _check_scale(config, n_features)
    _check_choice(config)
    _check_polish(config)


def _check_scale(config: TrainConfig, n_features: int) -> None:
    kernel, asked = config.kernel, f"`kernel.scale={config.kernel.scale}`"
    if not learns_scales(kernel.scale):
        return
    if kernel.scale == METRIC and n_features > MOST_OF_METRIC:
        raise ConfigError(f"{asked} is for at most {MOST_OF_METRIC} features, there are {n_features}: choose diagonal")
    for one in kernels_of(kernel):
        if kernel.scale == METRIC and not one.has_metric:
            raise ConfigError(f"{asked} cannot be learned for the {one.name} kernel; choose another of them")


def _check_choice(config: TrainConfig) -> None:
    kernel, asked = config.kernel, f"`kernel.name={config.kernel.name}`"
    if kernel.name != AUTO_KERNEL:
        return
    if kernel.sigma2 != "auto":
        raise ConfigError(f"{asked} also chooses the width; give it `kernel.sigma2=auto`")


def _check_polish(config: TrainConfig) -> None:
    solver, asked = config.solver, f"`solver.polish_centers={config.solver.polish_centers}`"
    if not solver.polish_centers:
        return
    if solver.select == "none" and solver.penalty == NO_PENALTY:  # of a table, unless something asks for another
        raise ConfigError(
            f"{asked} moves centers that were chosen, and with `solver.penalty=none`, given or filled in, all "
            "candidates are centers: add `solver.select=greedy:K`, or `solver.penalty=auto` and `solver.refit=ridge`"
        )
    if solver.select == "none" and solver.refit == "none":
        raise ConfigError(
            f"{asked} refits the weights wherever the centers are: add `solver.select=greedy:K` or `solver.refit=ridge`"
        )
    if config.kernel.name != "gaussian":
        raise ConfigError(
            f"{asked} knows how a gaussian changes as its center moves, not a {config.kernel.name} kernel"
        )
