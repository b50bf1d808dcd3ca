"""The strictest settings for every test. `kimi_jax_prep` is not imported here: jaxtyping's plugin hooks it first."""

import jax
import jaxtyping
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def unchecked():
    """Callers have no type checker: with this fixture, values of a wrong type meet the library's own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
