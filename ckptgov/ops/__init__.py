"""A verb per module: the catalog's transitions around ``work``. Takes plans, never makes them.

Storage is written first, the catalog last: it is an index, and a killed verb leaves it merely
behind. This room knows settings, catalog and work; it knows nothing of terminals or HTTP.
"""
