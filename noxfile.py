"""`nox` runs the tests on every supported Python, JAX and Pillow. `nox -s "tests-3.11(pillow='13')"` runs one cell."""

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

PILLOWS = {"11": "pillow>=11,<12", "12.3": "pillow>=12.3,<12.4", "13": "pillow>=13,<14"}


@nox.session(python=["3.11", "3.12", "3.13"])
@nox.parametrize("pillow", list(PILLOWS))
def tests(session: nox.Session, pillow: str) -> None:
    """The whole suite. Python decides which JAX pip takes: 0.10.x on 3.11, 0.12.x on 3.13."""
    session.install("-e", ".[test]", PILLOWS[pillow])
    if session.python == "3.11":
        session.install("torch==2.13.0")
    session.run("python", "-m", "pytest", *session.posargs)
