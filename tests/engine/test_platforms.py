"""Systems that lack what Linux has, and forks under load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_interrupts import run_python

import kimi_jax_prep as kjp
from kimi_jax_prep import fork
from kimi_jax_prep.engine import process


@pytest.mark.parametrize("missing", [("register_at_fork", "sched_getaffinity", "fork"), ("sched_getaffinity",)])
def test_systems_without_forks_affinity_or_proc(missing):
    run_python(f"""
        import os, pathlib
        for name in {missing!r}:
            delattr(os, name)
        pathlib.Path.iterdir = lambda self: (_ for _ in ()).throw(FileNotFoundError(str(self)))
        import numpy as np
        import kimi_jax_prep as kjp
        from kimi_jax_prep import reference
        from PIL import Image

        picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 500, 3), np.uint8))
        prep = kjp.Preprocessor()
        prep.warmup(max_patches=1000)
        assert prep.num_threads == os.cpu_count()
        want = reference.preprocess([picture], kjp.KIMI_K25).pixel_values.tobytes()
        assert prep([picture]).pixel_values.tobytes() == want
        assert kjp.preprocess([picture]).pixel_values.tobytes() == want
    """)


def test_num_cpus_is_the_affinity_where_there_is_one(monkeypatch):
    assert process.num_cpus() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert process.num_cpus() == os.cpu_count()


def test_forks_of_a_busy_parent():
    script = Path(__file__).parents[1] / "stress" / "forks.py"
    done = subprocess.run(
        [sys.executable, str(script), "--count", "25"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fork_asks_no_lock_of_jax():
    """A lock of JAX that another thread holds at the fork is never released in the child."""
    out = run_python("""
        import os, signal, time, warnings
        warnings.simplefilter("ignore")
        import jax, numpy as np
        import kimi_jax_prep as kjp
        from jax._src import xla_bridge

        kjp.preprocess([np.zeros((28, 28, 3), np.uint8)])
        xla_bridge._backend_lock.acquire()  # as a thread in the middle of a call has it
        pid = os.fork()
        if pid == 0:
            print(kjp.preprocess([np.zeros((28, 28, 3), np.uint8)]).pixel_values.shape, flush=True)
            os._exit(0)
        for _ in range(1000):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        else:
            os.kill(pid, signal.SIGKILL)
        xla_bridge._backend_lock.release()
        print(done == pid and status)
    """)
    assert out == "(4, 3, 14, 14)\n0\n"


def test_a_fork_waits_for_imports_on_other_threads():
    out = run_python(
        """
        import os, sys, threading, time, types
        import kimi_jax_prep
        sys.path.insert(0, FOLDER)
        import tempfile, pathlib
        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "PIL").mkdir()
        (folder / "PIL" / "__init__.py").write_text("import time; time.sleep(1)")
        sys.path.insert(0, str(folder))
        thread = threading.Thread(target=lambda: __import__("PIL"))
        thread.start()
        time.sleep(0.3)
        start = time.monotonic()
        pid = os.fork()
        if pid == 0:
            import PIL  # would wait for ever for the parent's thread
            os._exit(0)
        print(time.monotonic() - start > 0.5, os.waitpid(pid, 0)[1])
        thread.join()
    """.replace("sys.path.insert(0, FOLDER)\n", "\n")
    )
    assert out == "True 0\n"


def test_pure_functions_in_a_forked_child(monkeypatch):
    monkeypatch.setattr(fork, "_dead", True)
    with pytest.raises(RuntimeError, match=r"`patchify` needs JAX.*'spawn' or 'forkserver'"):
        kjp.patchify(__import__("numpy").zeros((28, 28, 3), "uint8"), None)


def test_a_child_that_imports_the_package_first_and_has_a_second_thread():
    out = run_python("""
        import os, threading, time, warnings
        warnings.simplefilter("ignore")
        import jax
        jax.numpy.zeros(3).block_until_ready()
        pid = os.fork()
        if pid == 0:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            import kimi_jax_prep as kjp
            import numpy as np
            print(kjp.preprocess([np.zeros((28, 28, 3), np.uint8)]).pixel_values.shape, flush=True)
            os._exit(0)
        print(os.waitpid(pid, 0)[1])
    """)
    assert out == "(4, 3, 14, 14)\n0\n"
