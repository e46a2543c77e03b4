import pytest

for part in (
    "_contract_base",
    "delivery_contract",
    "moving_contract",
    "removing_contract",
    "storage_contract",
):
    pytest.register_assert_rewrite(f"ckptgov.testing.{part}")


from ckptgov.testing import storage_contract  # noqa: E402  after its asserts are registered


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has no meaning for a kind of storage: nothing is missing where it does not
    run, so it is no skip."""
    meaningless = [item for item in items if _lacks(item)]
    if meaningless:
        config.hook.pytest_deselected(items=meaningless)
        items[:] = [item for item in items if item not in set(meaningless)]


def _lacks(item: pytest.Item) -> bool:
    cls, fixtures = getattr(item, "cls", None), getattr(item, "fixturenames", ())
    if cls is None or not hasattr(cls, "has_directories"):
        return False
    given = item.callspec.params if hasattr(item, "callspec") else {}
    of_directories = (
        "of_directories" in fixtures
        or given.get("verb") in (*storage_contract.OF_DIRECTORIES, *storage_contract.MOVING)
        or item.originalname == "test_only_what_was_begun_is_forgotten"
    )
    return (
        (of_directories and not cls.has_directories)
        or ("of_symlinks" in fixtures and not cls.has_symlinks)
        or ("\udcff" in str(given.get("name", "")) and not cls.has_raw_names)
    )
