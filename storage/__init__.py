"""Bytes on disk: zarr v3 arrays, atomic commits, manifests, done-markers, locks and the paths of a run.

Knows nothing of images, kernels or dask.
"""
