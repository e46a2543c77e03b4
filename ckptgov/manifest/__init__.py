"""Manifests, parts, receipts, identities and journal records: values to bytes and back, digests.

Promises: equal values give equal bytes; what decodes was written by this form and by nothing else
(every decoder writes its result again and compares); everything wrong is ``errors.Malformed`` and
names file and member; a hostile file costs no more memory than a small multiple of its size, which
is capped before it is looked at. Digests come from one pass with the file's token taken before and
after, so a file that changed meanwhile never has one.

Must not know: where files lie (it is given bytes, an ``OpenFile`` or a ``Reader``), frameworks,
catalog, policies, the clock.

Modules, imported one by one because start-up time counts::

    names      paths and our file names          content    the content id
    forms/     the bytes of each file of ours    build      shards or parts to a manifest
    digest     files to digests (xxhash)         compare    a manifest against a tree
    xxhsum     a manifest as `xxhsum -c` reads it
"""
