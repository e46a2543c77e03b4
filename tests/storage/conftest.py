import pytest

pytest.register_assert_rewrite("ckptgov.testing.storage_contract")
