"""Settings from ``$CKPTGOV_HOME/ckptgov.yaml`` and policies beside it, as frozen values.

Promises: what loads is complete and possible (``model.settings``, ``model.policy``); whatever is
misspelt, doubled, of the wrong type or out of range is a ``ConfigError`` naming file and line; an
edit keeps the user's comments and order, and happens whole or not at all. A policy that loads has
no rule that could never keep anything, and no other policy surely selects one of its runs.

Must not know: what lies on a tier, the catalog, checkpoints. It never looks at a tier's root, so
it loads while a file system hangs. The environment is read by whoever calls ``home.home_dir``;
nothing below this room reads it.

Import from the modules (``config.home``, ``config.load``, ``config.edit``, ``config.budgets``,
``config.policies``): the YAML parser is loaded only when there is a file to parse.
``config.urls`` and ``config.units`` never load it: they say what a URL, a rate or an amount is,
for whoever takes one from a person.
"""
