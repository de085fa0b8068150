"""scikit-image's histograms of oriented gradients, at one or several cell sizes."""

import numpy as np

from features.errors import UsageError

ALGORITHM_VERSION = 1


def hog_length(height: int, width: int, cells: tuple[int, ...], orientations: int) -> int:
    """Return the number of features of an image of `height` x `width` pixels.

    Raises
    ------
    UsageError
        A cell size is below 2 or larger than the image, or there is no orientation.
    """
    if orientations < 1 or not cells:
        raise UsageError(f"hog needs cell sizes and orientations, found cells {cells}, orientations {orientations}")
    for cell in cells:
        if not 2 <= cell <= min(height, width):
            raise UsageError(f"hog: a cell of {cell} pixels does not fit images of {height} x {width}")
    return sum((height // cell) * (width // cell) * orientations for cell in cells)


def hog(images: np.ndarray, cells: tuple[int, ...], orientations: int) -> np.ndarray:
    """Compute unsigned histograms of gradients, each cell normalised on its own, cell sizes side by side.

    Parameters
    ----------
    images : numpy.ndarray
        (n, H, W) bytes or floats.
    cells : tuple of int
        Cell sizes in pixels.
    orientations : int
        Number of bins over 180°.

    Returns
    -------
    numpy.ndarray
        (n, d) float32. About a millisecond an image of 28 x 28.

    Raises
    ------
    UsageError
        Inputs that are no images, or sizes that do not fit them.
    """
    # Imported here: slow to import, and no other descriptor needs it.
    from skimage.feature import hog as skimage_hog

    if images.ndim != 3:
        raise UsageError(f"hog needs images (n, H, W), found inputs of shape {images.shape}; use features = raw")
    n_features = hog_length(images.shape[1], images.shape[2], cells, orientations)
    out = np.empty((len(images), n_features), dtype=np.float32)
    for i, image in enumerate(images):
        out[i] = np.concatenate(
            [
                skimage_hog(image, orientations=orientations, pixels_per_cell=(cell, cell), cells_per_block=(1, 1))
                for cell in cells
            ]
        )
    return out
