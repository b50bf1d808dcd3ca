"""`python -m kimi_jax_prep` is the command `kimi-jax-prep`."""

from kimi_jax_prep.cli import main

if __name__ == "__main__":
    main()
