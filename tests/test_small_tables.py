"""The protocol of kernel machines on small tables (`benchmarks/uci.py`): its kernels, its files, what it chooses."""

from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def uci(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import uci

    return uci


RNG = np.random.default_rng(4)
X = RNG.normal(size=(60, 3)) + np.repeat([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]], 20, axis=0)
Y = np.repeat([0, 1, 2], 20)


def by_hand(layers, fixed):
    """Θ of a relu network without biases whose first layers are fixed, from x·x', by the arc-cosine formula."""
    K = X @ X.T
    Theta = np.zeros_like(K)
    for layer in range(layers):
        if layer:
            size = np.sqrt(np.outer(K.diagonal(), K.diagonal()))
            angle = np.arccos(np.clip(K / size, -1.0, 1.0))
            K = size * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2.0 * np.pi)
            Theta = Theta * (np.pi - angle) / (2.0 * np.pi)
        Theta = Theta + K * (layer >= fixed)
    return Theta


def test_kernels_are_those_of_the_protocol(uci):
    made = uci.kernels(X, 4)
    assert list(made["ntk"]) == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2), (4, 3)]
    for (layers, fixed), kernel in made["ntk"].items():
        np.testing.assert_allclose(kernel, by_hand(layers, fixed), rtol=1e-6)
    assert np.abs(made["ntk"][3, 1] - by_hand(3, 0)).max() > 0.1
    np.testing.assert_allclose(made["nngp"][4, 0], made["ntk"][4, 3], rtol=1e-12)


def test_tables_are_read_and_evaluated_as_the_protocol_says(uci, tmp_path):
    order = RNG.permutation(60)
    folds = [(np.delete(order, slice(at, at + 15)), order[at : at + 15]) for at in range(0, 60, 15)]

    def written(name, **sizes):
        folder = tmp_path / name
        folder.mkdir()
        told = {"n_entradas": 3, "n_clases": 3, "fich1": f"{name}_R.dat", "n_patrons1": 60} | sizes
        (folder / f"{name}.txt").write_text("".join(f"{key}= {value}\n" for key, value in told.items()))
        rows = [
            f"{number} {' '.join(map(repr, x.tolist()))} {y}" for number, (x, y) in enumerate(zip(X, Y, strict=True), 1)
        ]
        (folder / f"{name}_R.dat").write_text("\n".join(["\tf1\tf2\tf3\tclase", *rows]))
        pairs = [[(order[:30], order[30:])], folds]
        for file, some in zip(("conxuntos.dat", "conxuntos_kfold.dat"), pairs, strict=True):
            (folder / file).write_text("".join(f"{' '.join(map(str, line))}\n" for pair in some for line in pair))

    written("blobs")
    written("large", n_patrons1=6000)
    written("tested", n_patrons2=10)
    (tmp_path / "notes.txt").write_text("no table")
    (table,) = uci.tables_of(tmp_path, 5000)
    assert table.name == "blobs"
    np.testing.assert_array_equal(table.X, X)
    np.testing.assert_array_equal(table.y, Y)
    for (train, test), (own_train, own_test) in zip(table.folds, folds, strict=True):
        np.testing.assert_array_equal(train, own_train)
        np.testing.assert_array_equal(test, own_test)
    best = uci.chosen(table, uci.kernels(table.X, 2)["ntk"])
    assert best.test == np.mean([
        uci.accuracy(by_hand(best.layers, best.fixed), Y, fold, best.cost) for fold in table.folds
    ])  # fmt: skip
    assert best.test > 0.7
    # labels that mean nothing are not learned
    shuffled = uci.Table("shuffled", X, RNG.permutation(Y), table.split, table.folds)
    assert uci.chosen(shuffled, uci.kernels(X, 2)["ntk"]).test < 0.6
