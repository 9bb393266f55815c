from __future__ import annotations

import numpy as np
import pytest

from tests.apps.logistic.data import dense, make, write_libsvm
from windlass.apps.logistic import Model, load
from windlass.errors import UsageError

ROWS = make(50)
MODEL = Model(np.array([1, 4, 1 << 50]), np.array([0.5, -1.5, 9.0], np.float32), 0.25, 2.0, 17.5)


def test_margins_are_weights_times_values_and_the_bias():
    weights = np.zeros(int(ROWS.ids.max()) + 1)
    weights[[1, 4]] = [0.5, -1.5]
    margins = dense(ROWS) @ weights + 0.25
    assert np.allclose(MODEL.margins(ROWS), margins, atol=1e-6)
    assert np.array_equal(MODEL.predict(ROWS), np.where(margins > 0, 1, -1))
    assert np.allclose(MODEL.chances(ROWS), 1 / (1 + np.exp(-margins)))


def test_a_score_is_of_examples_in_memory_or_in_a_file(tmp_path):
    write_libsvm(tmp_path / "rows.libsvm", ROWS)
    score, streamed = MODEL.score(ROWS), MODEL.score(tmp_path / "rows.libsvm")
    assert score.accuracy == np.mean(MODEL.predict(ROWS) == ROWS.labels)
    assert streamed.correct == score.correct
    assert streamed.loss == pytest.approx(score.loss)
    with pytest.raises(UsageError, match="got none"):
        MODEL.score(ROWS.take(0, 0))


def test_a_saved_model_is_the_same_when_it_is_loaded(tmp_path):
    MODEL.save(tmp_path / "model.npz")
    again = load(tmp_path / "model.npz")
    assert np.array_equal(again.ids, MODEL.ids)
    assert np.array_equal(again.weights, MODEL.weights)
    assert (again.bias, again.l1, again.objective) == (MODEL.bias, MODEL.l1, MODEL.objective)


def test_what_is_no_model_is_said(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        load(tmp_path / "nothing.npz")
    (tmp_path / "text").write_text("not a model")
    with pytest.raises(UsageError, match="is no model"):
        load(tmp_path / "text")
    np.savez(tmp_path / "other.npz", ids=np.arange(3))
    with pytest.raises(UsageError, match="expected the format"):
        load(tmp_path / "other.npz")
    MODEL.save(tmp_path / "cut.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:-40])
    with pytest.raises(UsageError, match="is no model"):
        load(tmp_path / "cut.npz")
    with pytest.raises(UsageError, match="cannot be written"):
        MODEL.save(tmp_path / "no" / "where.npz")
