"""Which features of which data a run asks for, and what a store of them holds: known before any is computed."""

import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from features.descriptors import FeatureSpec, feature_length, parameters
from features.open_source import PUBLISHED, given_folder
from features.source import PARTS, Part, Source, SourceSpec
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.open_data import open_data
from pipeline.errors import ConfigError
from pipeline.runtime.own_code import digest_sources
from storage.records import digest_of
from storage.zarr_arrays import chunk_rows_for

FORMAT_VERSION = 1
ITEM_CHUNKS = 4  # chunks of features that one task writes


@dataclass(frozen=True)
class FeatureRequest:
    """What is to be stored; balanced: the moments of the z-scoring count every class alike."""

    source: SourceSpec
    features: FeatureSpec
    standardise: bool
    balanced: bool = False


@dataclass(frozen=True)
class FeatureShape:
    """What a store holds, known before any feature is computed."""

    task: str
    classes: tuple[Any, ...]
    n_train: int
    n_features: int
    chunk_rows: int
    n_test: int = 0
    dataset: str = "X"
    digest: str = ""
    description: dict[str, Any] = field(default_factory=dict)
    weighted: tuple[Part, ...] = ()  # the parts whose rows have weights
    dtype: str = "float32"  # of the rows

    @property
    def store(self) -> str:
        """Name of the store: that of other data, of other features or of other code that computes them is another."""
        return f"{self.digest}-{digest_sources('features')}"

    @property
    def n_outputs(self) -> int:
        return len(self.classes) if self.task == "multiclass" else 1

    def n_rows(self, part: Part) -> int:
        return self.n_train if part == "train" else self.n_test

    @property
    def item_rows(self) -> int:
        return ITEM_CHUNKS * self.chunk_rows

    @property
    def disk_bytes(self) -> int:
        n_weights = sum(map(self.n_rows, self.weighted))
        return (self.n_train + self.n_test) * (self.n_features * 4 + 8) + 8 * (n_weights + self.n_train)


def source_spec(config: TrainConfig) -> SourceSpec:
    """Return the description of the data, with the folder of SLKL_DATA_DIR, which workers of a cluster may not know."""
    named_alike = (each.name for each in fields(SourceSpec) if hasattr(config.data, each.name))
    alike: dict[str, Any] = {name: getattr(config.data, name) for name in named_alike}
    place = os.environ.get("SLKL_DATA_DIR")
    if config.dataset in PUBLISHED and place and given_folder(config.dataset, place) is not None:
        alike["data_dir"] = str(Path(place).absolute())
    alike["seed"] = config.seed
    alike["size"] = config.features.size
    if config.resources.stores_features:
        alike["kept"] = str(Path(config.resources.features_dir).absolute() / "tables")
    return SourceSpec(config.dataset, **alike)


def feature_spec(config: TrainConfig) -> FeatureSpec:
    """Return the features of settings that are filled in."""
    return FeatureSpec(**{each.name: getattr(config.features, each.name) for each in fields(FeatureSpec)})


def request_of(config: TrainConfig, spec: SourceSpec) -> FeatureRequest:
    """Return the request of settings whose features are filled in, of the data that `source_spec` describes."""
    standardise = bool(config.data.standardise)
    return FeatureRequest(spec, feature_spec(config), standardise, standardise and config.data.class_weight is not None)


def describe(request: FeatureRequest, source: Source | None = None) -> FeatureShape:
    """Return what the store of a request holds. Opens the source (and so checks its files) unless it is given."""
    source = source or open_data(request.source)
    name, deskew = request.features.name, request.features.deskew
    if request.standardise and (name != "raw" or deskew):
        more = f"`features.name={name}`" if name != "raw" else f"`features.deskew={deskew:g}`"
        raise ConfigError(f"`data.standardise=true` with {more}: inputs are z-scored as they are; leave one out")
    n_features = feature_length(request.features, source.input_shape)
    read_bytes = math.prod(source.input_shape) // ITEM_CHUNKS if len(source.input_shape) > 1 else 0  # of large images
    description = {
        "format_version": FORMAT_VERSION,
        "source": source.identity,
        "features": parameters(request.features),
        "standardise": request.standardise,
        **({"balanced": True} if request.balanced else {}),
    }
    return FeatureShape(
        digest=digest_of(description),
        dataset=source.name,
        task=source.task,
        classes=tuple(source.classes),
        n_train=source.n_train,
        n_test=source.n_test,
        n_features=n_features,
        chunk_rows=chunk_rows_for(max(4 * n_features, read_bytes), source.n_train),
        description=description,
        weighted=tuple(part for part in PARTS if source.parts[part].weights is not None),
    )
