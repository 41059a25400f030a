"""Architectures as expressions in the names of `stax`, which neural-tangents and widthwise both evaluate."""

IMAGE, SEQUENCE, ROW, VOLUME = (3, 6, 6, 3), (3, 7, 4), (4, 5), (2, 3, 4, 3, 2)
C = "stax.Conv(8, {}, W_std=1.3, b_std=0.2, {})"
D = "stax.Dense(8, W_std=1.2, b_std=0.1)"
SAME, VALID, RING = 'padding="SAME"', 'padding="VALID"', 'padding="CIRCULAR"'
END = f"stax.Flatten(), {D}"
MEAN = f"stax.GlobalAvgPool(), {D}"
C3 = C.format((3, 3), SAME)
RELU, ERF, NORM = "stax.Relu()", "stax.Erf()", "stax.LayerNorm()"


def _serial(*parts: str) -> str:
    return f"stax.serial({', '.join(parts)})"


def _deep(activation: str, depth: int, end: str) -> str:
    return _serial(*[C3, activation] * depth, end)


def _branches(join: str, *branches: str) -> str:
    many = ", ".join(branches)
    return f"stax.FanOut({len(branches)}), stax.parallel({many}), stax.{join}()"


_RESIDUAL = _branches("FanInSum", _serial("stax.Relu()", C3, "stax.Erf()", C3), "stax.Identity()")
_ATTEND = "stax.GlobalSelfAttention(8, 8, 8, 4, {})"

#: Name → (expression, shape of the inputs).
CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "dense relu": (_serial(D, RELU, D), ROW),
    "dense erf 5": (_serial(*[D, ERF] * 5, D), ROW),
    "dense gelu": (_serial(D, "stax.Gelu()", D, "stax.Gelu()", D), ROW),
    "dense leaky": (_serial(D, "stax.LeakyRelu(0.2)", D), ROW),
    "dense abs": (_serial(D, "stax.Abs()", D), ROW),
    "dense abrelu": (_serial(D, "stax.ABRelu(0.3, 1.4)", D), ROW),
    "dense sin": (_serial(D, "stax.Sin(1.1, 0.7, 0.3)", D), ROW),
    "dense cos": (_serial(D, "stax.Cos()", D, "stax.Sin()", D), ROW),
    "dense rbf": (_serial(D, "stax.Rbf(0.8)", D), ROW),
    "dense exp": (_serial(D, "stax.Exp(0.7, 0.4)", D), ROW),
    "dense gaussian": (_serial(D, "stax.Gaussian(1.1, -0.6)", D), ROW),
    "dense polynomial": (_serial(D, "stax.Polynomial([0.3, 0.5, 0.2, 0.1])", D), ROW),
    "dense hermite": (_serial(D, NORM, "stax.Hermite(3)", D), ROW),
    "dense rectified": (_serial(D, "stax.RectifiedMonomial(2)", D), ROW),
    "dense sigmoid-like": (_serial(D, "stax.Sigmoid_like()", D, "stax.Erf(0.8, 1.3, 0.2)", D), ROW),
    "dense monomial": (_serial(D, "stax.Monomial(2)", D), ROW),
    "dense standard": (
        _serial(*['stax.Dense(8, 1.2, 0.3, parameterization="standard")', RELU] * 2, "stax.Dense(1)"), ROW,
    ),
    "dense ends with relu": (_serial(D, RELU), ROW),
    "dense layer norm": (_serial(D, NORM, RELU, D, NORM), ROW),
    "dense dropout": (_serial(D, RELU, "stax.Dropout(0.7)", D, ERF, "stax.Dropout(0.4)", D), ROW),
    "dense dropout test": (_serial(D, RELU, 'stax.Dropout(0.7, "test")', D), ROW),
    "dense sum": (_serial(D, _branches("FanInSum", _serial(RELU, D), D), ERF, D), ROW),
    "dense concat": (
        _serial(D, _branches("FanInConcat", _serial(RELU, D, ERF), ERF), D), ROW,
    ),
    "dense product": (
        _serial(D, _branches("FanInProd", _serial(RELU, D, ERF), ERF), D), ROW,
    ),
    "same flatten": (_deep(RELU, 2, END), IMAGE),
    "same mean": (_deep(RELU, 2, MEAN), IMAGE),
    "deep 10 flatten": (_deep(RELU, 10, END), IMAGE),
    "deep 10 mean": (_deep(ERF, 10, MEAN), IMAGE),
    "gelu mean": (_deep("stax.Gelu()", 4, MEAN), IMAGE),
    "valid flatten": (_serial(C.format((3, 3), VALID), ERF, C.format((2, 3), VALID), RELU, END), IMAGE),
    "valid mean": (_serial(C.format((3, 2), VALID), ERF, C.format((2, 3), VALID), RELU, MEAN), IMAGE),
    "circular flatten": (_serial(C.format((3, 3), RING), RELU, C.format((4, 3), RING), RELU, END), IMAGE),
    "circular mean": (_serial(C.format((3, 3), RING), RELU, C.format((2, 3), RING), RELU, MEAN), IMAGE),
    "strides flatten": (_serial(C.format((3, 3), SAME + ", strides=(2, 1)"), RELU,
                                C.format((3, 3), VALID + ", strides=(1, 2)"), ERF, END), IMAGE),
    "strides mean": (_serial(C.format((3, 3), SAME + ", strides=(2, 2)"), RELU,
                             C.format((2, 2), SAME + ", strides=(2, 1)"), ERF, MEAN), IMAGE),
    "even window same": (_serial(C.format((2, 4), SAME), RELU, MEAN), IMAGE),
    "average pool": (_serial(C3, RELU, "stax.AvgPool((2, 2), (2, 2))", C3, RELU, END), IMAGE),
    "average pool same": (
        _serial(C3, ERF, 'stax.AvgPool((3, 2), (2, 1), "SAME")', C3, RELU, MEAN), IMAGE,
    ),
    "average pool edges": (
        _serial(C3, ERF, 'stax.AvgPool((3, 3), (1, 1), "SAME", normalize_edges=True)', END), IMAGE,
    ),
    "average pool circular": (_serial(C3, RELU, 'stax.AvgPool((3, 3), None, "CIRCULAR")', END), IMAGE),
    "sum pool": (_serial(C3, RELU, "stax.SumPool((2, 2), (2, 2))", C3, ERF, END), IMAGE),
    "global sum": (_serial(C3, RELU, "stax.GlobalSumPool()", D), IMAGE),
    "pool of preactivations": (_serial(C3, "stax.AvgPool((2, 2), (2, 2))", RELU, END), IMAGE),
    "residual flatten": (_serial(C3, _RESIDUAL, _RESIDUAL, RELU, END), IMAGE),
    "residual mean": (_serial(C3, _RESIDUAL, RELU, MEAN), IMAGE),
    "layer norm image": (_serial(C3, NORM, RELU, C3, NORM, ERF, MEAN), IMAGE),
    "dropout image flatten": (_serial(C3, RELU, "stax.Dropout(0.6)", C3, RELU, END), IMAGE),
    "dropout image mean": (
        _serial(C3, RELU, "stax.Dropout(0.6)", C3, ERF, "stax.Dropout(0.8)", MEAN), IMAGE,
    ),
    "concat image": (
        _serial(C3, _branches("FanInConcat", _serial(RELU, C.format((1, 1), SAME), ERF), RELU),
                C3, RELU, MEAN), IMAGE,
    ),
    "product image": (
        _serial(C3, _branches("FanInProd", _serial(RELU, C3, ERF), RELU), C3, RELU, END),
        IMAGE,
    ),
    "three branches": (
        _serial(C3, _branches("FanInSum", _serial(RELU, C3), _serial(ERF, C3), "stax.Identity()"),
                RELU, MEAN), IMAGE,
    ),
    "mixed activations": (_serial(C3, RELU, C3, "stax.Gelu()", C3, "stax.Sin()", C3, ERF, END), IMAGE),
    "dense at positions": (_serial(D, RELU, D, ERF, MEAN), IMAGE),
    "flatten first": (_serial("stax.Flatten()", D, RELU, D), IMAGE),
    "no bias": (_serial('stax.Conv(8, (3, 3), padding="SAME")', RELU, "stax.Flatten()", "stax.Dense(1)"), IMAGE),
    "standard image": (
        _serial('stax.Conv(8, (3, 3), (1, 1), "SAME", 1.2, 0.2, parameterization="standard")', RELU,
                "stax.GlobalAvgPool()", 'stax.Dense(1, 1.1, 0.3, parameterization="standard")'), IMAGE,
    ),
    "ends with convolution": (_serial(C3, RELU, C3), (2, 4, 3, 3)),
    "ends with pool": (_serial(C3, RELU, C3, RELU, "stax.AvgPool((2, 2))"), (2, 4, 3, 3)),
    "sequence flatten": (_serial(C.format((3,), SAME), RELU, C.format((4,), VALID), ERF, END), SEQUENCE),
    "sequence mean": (_serial(C.format((3,), RING), RELU, "stax.AvgPool((2,), (2,))", MEAN), SEQUENCE),
    "volume mean": (_serial(C.format((2, 2, 2), SAME), RELU, MEAN), VOLUME),
    "volume flatten": (_serial(C.format((2, 3, 2), VALID), ERF, END), VOLUME),
    "attention softmax": (_serial(C.format((3,), SAME), RELU, _ATTEND.format("W_key_std=1.2, W_out_std=1.1, b_std=0.3"),
                                  RELU, MEAN), SEQUENCE),
    "attention relu image": (
        _serial(C3, RELU, _ATTEND.format('attention_mechanism="RELU"'), RELU, END), IMAGE,
    ),
    "attention abs": (_serial(D, _ATTEND.format('attention_mechanism="ABS", W_query_std=0.7'), RELU, MEAN), SEQUENCE),
    "attention identity root": (
        _serial(D, _ATTEND.format('linear_scaling=False, attention_mechanism="IDENTITY", b_std=0.2, W_key_std=0.8'),
                RELU, MEAN), SEQUENCE,
    ),
    "attention positions": (
        _serial(D, _ATTEND.format('pos_emb_type="SUM", W_pos_emb_std=0.7'), RELU, MEAN), SEQUENCE,
    ),
    "attention positions in values": (
        _serial(D, _ATTEND.format('pos_emb_type="SUM", W_pos_emb_std=0.7, val_pos_emb=True'), RELU, MEAN), SEQUENCE,
    ),
    "attention root positions": (
        _serial(D, _ATTEND.format('linear_scaling=False, attention_mechanism="IDENTITY", pos_emb_type="SUM"'),
                RELU, MEAN), SEQUENCE,
    ),
    "two attentions": (_serial(D, RELU, _ATTEND.format("b_std=0.1"), NORM, _ATTEND.format("b_std=0.1"),
                               ERF, MEAN), SEQUENCE),
}  # fmt: skip
