"""An object store on loopback: moto's server, and what puts objects there."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from moto.server import ThreadedMotoServer


class ObjectServer:
    """Buckets of a server on loopback, which takes any keys."""

    def __init__(self, address: str) -> None:
        import boto3  # seconds

        self.address, self._numbers = address, itertools.count()
        session = boto3.session.Session(aws_access_key_id="x", aws_secret_access_key="y", region_name="us-east-1")
        self._client = session.client("s3", endpoint_url=address)

    def new_bucket(self) -> str:
        """Create an empty bucket; return its name."""
        name = f"bucket-{next(self._numbers)}"
        self._client.create_bucket(Bucket=name)
        return name

    def put(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        """Write objects by their keys."""
        for key, content in objects.items():
            self._client.put_object(Bucket=bucket, Key=key, Body=content)

    def remove(self, bucket: str, *keys: str) -> None:
        """Remove objects."""
        for key in keys:
            self._client.delete_object(Bucket=bucket, Key=key)


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Serve while the block runs."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    try:
        yield ObjectServer(f"http://{host}:{port}")
    finally:
        moto.stop()
