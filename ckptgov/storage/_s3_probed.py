"""The questions that ``tier check`` asks a bucket, as methods of its storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptgov.storage import _s3_probes as probes
from ckptgov.storage._s3_bucket import Bucket
from ckptgov.storage._s3_checksum import Checksum
from ckptgov.storage._s3_keys import Keys


class Probed:
    """Each probe works on keys of its own below ``.ckptgov/`` and removes them."""

    _bucket: Bucket
    _keys: Keys
    _checksum: Checksum

    def probe_conditional_put(self) -> bool:
        """Whether the store keeps ``If-None-Match`` on a put; tried out."""
        with probes.ground(self._bucket, self._keys, self._checksum) as at:
            return probes.conditional_put(at)

    def probe_conditional_complete(self) -> bool:
        """Whether it keeps it where a multipart upload is completed; tried out."""
        with probes.ground(self._bucket, self._keys, self._checksum) as at:
            return probes.conditional_complete(at)

    def probe_checksums(self) -> bool:
        """Whether it refuses wrong checksums, of an object and of a part; they are sent to see."""
        with probes.ground(self._bucket, self._keys, self._checksum) as at:
            return probes.checksums(at)

    def probe_list_order(self) -> bool:
        """Whether it lists in the order of the keys' bytes. Nothing here relies on it."""
        with probes.ground(self._bucket, self._keys, self._checksum) as at:
            return probes.list_order(at)

    def bucket_versioning(self) -> probes.Versioning:
        """Whether what is deleted or overwritten stays as an older version."""
        return probes.versioning(self._bucket, self._keys.root)

    def bucket_object_lock(self) -> bool:
        """Whether objects may be locked against removal."""
        return probes.object_lock(self._bucket, self._keys.root)

    def lifecycle_rules(self) -> Sequence[Mapping[str, object]]:
        """Rules of the bucket that may touch this tree, as the store tells them."""
        return probes.lifecycle(self._bucket, self._keys)
