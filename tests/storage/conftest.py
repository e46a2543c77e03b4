import pytest

for part in ("_contract_base", "delivery_contract", "moving_contract", "storage_contract"):
    pytest.register_assert_rewrite(f"ckptgov.testing.{part}")
