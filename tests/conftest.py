"""The strictest settings for every test. `kimi_jax_prep` is not imported here: jaxtyping's plugin hooks it first."""

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
