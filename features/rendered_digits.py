"""MNIST-like digits rendered from a seed: any number, row block by row block, nothing stored.

Row i of a part depends on (seed, part, i) only. Each image draws its digit, one of the ways to write it, an elastic
deformation of the strokes, an affine map, a pen width and an ink density.
"""

from collections.abc import Iterable, Sized
from itertools import chain

import numpy as np

from features.rendering_loops import SIDE, digits_of_rows, render_rows
from features.source import Part, Source, SourceSpec
from features.targets import class_labels

RENDERER_VERSION = 1
DEFAULT_TRAIN, DEFAULT_TEST = 60_000, 10_000

# How the ten digits are written: strokes as control points of curves, two or three ways for each digit. Coordinates are
# parts of the glyph's box, x to the right and y down. A stroke is a smooth curve; a corner is the end of one stroke and
# the start of the next at the same point.
Stroke = tuple[tuple[float, float], ...]

# fmt: off
GLYPHS: tuple[tuple[tuple[Stroke, ...], ...], ...] = (
    (   # 0: closed, narrow with a gap, with a hook
        (((.5, .02), (.25, .2), (.18, .5), (.25, .82), (.5, .98), (.75, .82), (.82, .5), (.75, .2), (.5, .02)),),
        (((.6, .05), (.35, .12), (.22, .5), (.35, .93), (.6, .92), (.76, .5), (.66, .1), (.48, .05)),),
        (((.75, .02), (.42, .08), (.18, .45), (.27, .85), (.55, .98), (.8, .7), (.76, .3), (.5, .1), (.38, .16)),),
    ),
    (   # 1: a line, with a flag, with a flag and a foot
        (((.53, 0.), (.5, .5), (.48, 1.)),),
        (((.3, .24), (.53, .02)), ((.53, .02), (.51, 1.))),
        (((.32, .2), (.52, .03)), ((.52, .03), (.5, .98)), ((.28, .98), (.74, .98))),
    ),
    (   # 2: with a corner, with a loop, round
        (((.2, .25), (.35, .05), (.62, .03), (.78, .25), (.65, .5), (.4, .75), (.18, .97)), ((.18, .97), (.5, .95),
         (.85, .96))),
        (((.2, .22), (.42, .02), (.72, .12), (.72, .4), (.5, .7), (.25, .95), (.14, .85), (.3, .75), (.55, .9),
         (.88, .92)),),
        (((.25, .12), (.52, .0), (.76, .16), (.7, .42), (.42, .68), (.22, .92)), ((.22, .92), (.45, .86), (.62, .98),
         (.86, .9))),
    ),
    (   # 3: two bows, a flat top, bows without a dent
        (((.2, .12), (.5, .0), (.75, .15), (.68, .38), (.42, .47)), ((.42, .47), (.72, .55), (.8, .78), (.55, .99),
         (.2, .9))),
        (((.2, .04), (.75, .04)), ((.75, .04), (.45, .4)), ((.45, .4), (.75, .5), (.8, .75), (.55, .98), (.18, .9))),
        (((.24, .06), (.58, .0), (.76, .18), (.6, .44), (.74, .64), (.66, .92), (.36, 1.), (.18, .88)),),
    ),
    (   # 4: round and open, closed, straight and open
        (((.3, .02), (.22, .3), (.25, .5), (.5, .55), (.8, .48)), ((.75, .05), (.7, .5), (.66, 1.))),
        (((.65, .0), (.38, .3), (.15, .62)), ((.15, .62), (.88, .62)), ((.65, .0), (.64, 1.))),
        (((.28, .05), (.22, .52)), ((.22, .52), (.85, .5)), ((.68, .1), (.62, 1.))),
    ),
    (   # 5: with corners, in one curve, with a short roof
        (((.8, .04), (.32, .05)), ((.32, .05), (.26, .42)), ((.26, .42), (.5, .36), (.76, .5), (.78, .78), (.5, .98),
         (.2, .9))),
        (((.78, .03), (.45, .06), (.3, .2), (.35, .42), (.62, .5), (.76, .7), (.6, .95), (.2, .95)),),
        (((.35, .1), (.3, .45)), ((.3, .45), (.56, .42), (.74, .62), (.64, .9), (.4, 1.), (.22, .92)), ((.35, .1),
         (.58, .1), (.82, .03))),
    ),
    (   # 6: round, steep with a small loop
        (((.68, .02), (.4, .2), (.24, .55), (.28, .88), (.52, .99), (.75, .83), (.7, .6), (.48, .53), (.27, .7)),),
        (((.5, .0), (.3, .4), (.22, .75), (.4, .98), (.66, .92), (.72, .7), (.5, .6), (.3, .75)),),
        (((.74, .1), (.52, .02), (.3, .22), (.22, .6), (.34, .94), (.62, .96), (.74, .74), (.58, .56), (.26, .68)),),
    ),
    (   # 7: plain, crossed, with a serif
        (((.18, .06), (.5, .05), (.82, .05)), ((.82, .05), (.6, .45), (.42, 1.))),
        (((.18, .07), (.82, .05)), ((.82, .05), (.6, .45), (.45, 1.)), ((.35, .5), (.78, .48))),
        (((.2, .22), (.22, .05)), ((.22, .05), (.5, .08), (.82, .03)), ((.82, .03), (.64, .4), (.56, 1.))),
    ),
    (   # 8: in one curve, two circles, open at the top
        (((.72, .1), (.5, .01), (.28, .12), (.3, .32), (.52, .48), (.74, .68), (.72, .9), (.5, 1.), (.27, .9),
         (.26, .68), (.5, .48), (.7, .32), (.74, .12)),),
        (((.5, .0), (.3, .1), (.3, .34), (.5, .46), (.7, .34), (.7, .1), (.5, .0)), ((.5, .46), (.25, .58), (.24, .88),
         (.5, 1.), (.76, .88), (.75, .58), (.5, .46))),
        (((.78, .06), (.5, .02), (.3, .16), (.36, .36), (.6, .54), (.7, .78), (.56, .98), (.34, .92), (.32, .7),
         (.56, .46), (.8, .14)),),
    ),
    (   # 9: straight, with a hook, small head
        (((.74, .25), (.6, .04), (.33, .06), (.22, .28), (.35, .48), (.6, .46), (.74, .25)), ((.74, .25), (.72, .6),
         (.62, 1.))),
        (((.76, .22), (.58, .02), (.3, .08), (.24, .32), (.42, .48), (.66, .4), (.76, .22)), ((.76, .22), (.78, .6),
         (.66, .92), (.42, 1.), (.24, .9))),
        (((.7, .14), (.48, .02), (.3, .14), (.32, .36), (.54, .42), (.7, .24)), ((.72, .06), (.7, .5), (.56, 1.))),
    ),
)
# fmt: on


def open_synthetic(spec: SourceSpec) -> Source:
    """Open synthetic digits, 60 000 and 10 000 unless given, which are rendered when they are read.

    Images (n, 28, 28) uint8, about 20 µs each. Raises DataError for the binary task: there are ten digits.
    """
    task = spec.task or "multiclass"
    classes = class_labels(np.arange(10), task)
    sizes = spec.n_train or DEFAULT_TRAIN, spec.n_test or DEFAULT_TEST
    seed, tables = np.uint64(spec.seed & 0xFFFFFFFFFFFFFFFF), _glyph_tables()

    def read(part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        part_number = np.uint64(0 if part == "train" else 1)
        images = np.empty((stop - start, SIDE, SIDE), dtype=np.uint8)
        digits = np.empty(stop - start, dtype=np.int64)
        digits_of_rows(seed, part_number, start, stop, digits)
        render_rows(seed, part_number, start, stop, *tables, images)
        return images, digits if classes else digits.astype(np.float64)

    identity = {"source": "synthetic", "renderer_version": RENDERER_VERSION, "task": task}
    identity |= {"n_train": sizes[0], "n_test": sizes[1], "seed": spec.seed}
    return Source("synthetic", task, classes, *sizes, (SIDE, SIDE), bool(spec.standardise), read, identity)


def _glyph_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the glyphs as flat tables: points (p, 2) f8, then where strokes, variants and digits start, int64.

    Each table of starts has one more entry than there are strokes, variants or digits: the end of the last.
    """
    variants = list(chain(*GLYPHS))
    strokes = list(chain(*variants))

    def starts(groups: Iterable[Sized]) -> np.ndarray:
        return np.cumsum([0, *map(len, groups)], dtype=np.int64)

    return np.array(list(chain(*strokes))), starts(strokes), starts(variants), starts(GLYPHS)
