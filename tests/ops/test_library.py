# SPDX-License-Identifier: Apache-2.0
"""Each way in which the library can fail to load gives one sentence, and the fallback works."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.ops import library
from tfx_largeout.ops.exact.streamed_logits import streamed_logits

pytestmark = pytest.mark.cpu  # on a GPU TensorFlow's ops may need no library


@pytest.fixture
def unloaded(monkeypatch, tmp_path):
    """A library module that has loaded nothing yet and looks in an empty folder."""
    monkeypatch.delenv("TFX_LARGEOUT_FORCE_FALLBACK", raising=False)
    monkeypatch.setattr(library, "_module", None)
    monkeypatch.setattr(library, "_problem", None)
    monkeypatch.setattr(library, "_LIBRARY", tmp_path / "_tfx_largeout.so")
    monkeypatch.setattr(library, "_BUILD_RECORD", tmp_path / "_tfx_largeout.json")
    return tmp_path


def write(folder, tensorflow=tf.__version__, content=b"not a library"):
    (folder / "_tfx_largeout.so").write_bytes(content)
    (folder / "_tfx_largeout.json").write_text(json.dumps({"tensorflow": tensorflow}))


def check_one_warning_then_fallback(message):
    with pytest.warns(RuntimeWarning, match=message) as caught:
        result = streamed_logits([[1.0]], [[1.0], [2.0]], None, [[0]], 1)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    np.testing.assert_array_equal(result.target_ranks, [[1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert library.load() is None
    assert re.search(message, library.library_status())
    with pytest.raises(RuntimeError, match=f"implementation='op' can't be used: .*{message}"):
        streamed_logits([[1.0]], [[1.0], [2.0]], None, [[0]], 1, implementation="op")


def test_missing_library(unloaded):
    check_one_warning_then_fallback("shared library .* is missing: .* --no-deps .` in its source")


def test_missing_build_record(unloaded):
    (unloaded / "_tfx_largeout.so").write_bytes(b"")
    check_one_warning_then_fallback("build record .* is missing or not readable: reinstall")


def test_installed_where_there_was_no_compiler(unloaded):
    record = {"not_built": "no C++ compiler was found"}
    (unloaded / "_tfx_largeout.json").write_text(json.dumps(record))
    check_one_warning_then_fallback(
        "installed without its shared library, as no C\\+\\+ compiler was found: install a C"
    )


def test_wrong_version(unloaded):
    write(unloaded, tensorflow="2.3.1")
    check_one_warning_then_fallback(
        "built for TensorFlow 2.3 but .* is installed: run `pip install 'tensorflow~=2.3.0'`"
    )


def test_a_file_that_is_no_library(unloaded):
    write(unloaded)
    check_one_warning_then_fallback("shared library can't be loaded .*: reinstall")


def test_missing_symbols(unloaded, monkeypatch):
    def fail(path):
        raise tf.errors.NotFoundError(
            None, None, f"{path}: undefined symbol: _ZN10tensorflow8OpKernelE"
        )

    write(unloaded)
    monkeypatch.setattr(tf, "load_op_library", fail)
    check_one_warning_then_fallback("built against TensorFlow .* symbols .*: reinstall")


def test_unsupported_platform(unloaded, monkeypatch):
    monkeypatch.setattr(library.platform, "system", lambda: "Windows")
    check_one_warning_then_fallback("no custom ops for Windows: use Linux")


def test_forced_fallback_is_silent(unloaded, monkeypatch):
    monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert library.load() is None
    assert "TFX_LARGEOUT_FORCE_FALLBACK" in library.library_status()
    assert library.instruction_set() is None


def test_a_library_that_loads(monkeypatch):
    monkeypatch.delenv("TFX_LARGEOUT_FORCE_FALLBACK", raising=False)
    assert library.load() is library.load()
    assert library.load() is not None
    assert library.library_status().startswith("custom ops loaded (TensorFlow 2.")
    assert library.build_record()["tensorflow"] == tf.__version__


def test_status_while_a_function_is_traced(monkeypatch):
    monkeypatch.delenv("TFX_LARGEOUT_FORCE_FALLBACK", raising=False)
    traced = []
    tf.function(lambda: traced.append(library.library_status()))()
    assert traced == [library.library_status()]


@pytest.mark.parametrize("name", ["baseline", "avx9"])
def test_instruction_set_follows_the_environment(name, monkeypatch):
    monkeypatch.delenv("TFX_LARGEOUT_FORCE_FALLBACK", raising=False)
    monkeypatch.setenv("TFX_LARGEOUT_ISA", name)
    if name == "baseline":
        assert library.instruction_set() == "baseline"
    else:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="must be baseline, avx2, avx512 or avx512_bf16"
        ):
            library.instruction_set()
