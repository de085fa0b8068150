"""Published files from public mirrors into a per-user cache, trusted for their sha256 and nothing else."""

import errno
import http.client
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pooch

from features.errors import UnavailableError

MAX_FILE_BYTES = 64 << 20
PIECE_BYTES = 1 << 16
# Faults of the cache folder, where another mirror would not help.
CACHE_FAULTS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class BoundedDownloader:
    """A pooch downloader that gives up: on silence, on a trickle, and on a body without an end.

    silence_seconds : longest wait for a connection or for the next bytes
    total_seconds : longest time for a whole file
    """

    silence_seconds: float = 15.0
    total_seconds: float = 300.0

    def __call__(self, url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        """Write the body of `url` to the file `output_file`; the rest is pooch's interface.

        Raises OSError where the server does not answer, answers with an error, or takes too long, ValueError where the
        body is longer than any file wanted here.
        """
        stop = time.monotonic() + self.total_seconds
        received_bytes = 0
        with (
            Path(output_file).open("wb") as target,
            urllib.request.urlopen(url, timeout=self.silence_seconds) as answer,
        ):
            # read1 returns what has come in, so a trickle cannot hold one call past the limit.
            while piece := answer.read1(PIECE_BYTES):
                received_bytes += len(piece)
                if received_bytes > MAX_FILE_BYTES:
                    raise ValueError(f"{url} sends more than {MAX_FILE_BYTES} bytes")
                if time.monotonic() > stop:
                    raise TimeoutError(f"{url} took longer than {self.total_seconds:g} s")
                target.write(piece)


def cache_folder(dataset: str) -> Path:
    """Return the folder of a data set in the cache of this user; it need not exist."""
    return Path(pooch.os_cache("slkl")) / dataset


def fetch(
    dataset: str,
    files: Mapping[str, str],
    mirrors: Sequence[str],
    cache_dir: Path | None = None,
    downloader: BoundedDownloader | None = None,
) -> Path:
    """Return a folder that holds `files` (name → sha256 in hexadecimal digits), downloading those that it lacks.

    A file in the cache with another sha256 is replaced. Each file comes from the first of the mirrors, base URLs that
    end in "/", that delivers the right bytes; a file becomes visible in the cache only once its sha256 has been
    compared.

    cache_dir : None for the data set's folder in the per-user cache of this program
    downloader : time limits; None for the defaults

    Raises UnavailableError where no mirror delivered some file, OSError where the cache folder cannot be written.
    """
    folder = cache_folder(dataset) if cache_dir is None else cache_dir
    folder.mkdir(parents=True, exist_ok=True)
    for name, sha256 in files.items():
        failures = []
        for mirror in mirrors:
            hashed = {"known_hash": f"sha256:{sha256}", "fname": name, "path": folder}
            try:
                pooch.retrieve(mirror + name, **hashed, downloader=downloader or BoundedDownloader())
                break
            except (OSError, ValueError, http.client.HTTPException) as error:
                if getattr(error, "errno", None) in CACHE_FAULTS:
                    raise
                failures.append(f"{mirror}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        else:
            raise UnavailableError(
                f"{dataset}: no mirror delivered {name} ({'; '.join(failures)}); copy {', '.join(files)} to {folder} "
                "or to a folder given as --data-dir, or train on digits or synthetic, which need no download"
            )
    return folder
