"""Examples of every command, as its --help ends with them. Tests run them all, here or in the documentation."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "theory": (
        "widthwise theory --widths 2,64,64,1 --activation relu --C_W 2 --data circle",
        "widthwise theory --widths 2,32,1 --order 1 --out theory.nc --figure flow.svg",
        "widthwise theory --spec study.toml --order 1 --tensors V,G1 --layers last --format csv",
    ),
    "measure": ("widthwise measure --widths 2,32,1 --statistics K,Theta,V --networks 200 --out measured.nc",),
    "compare": (
        "widthwise compare theory.nc measured.nc --figure agreement.svg",
        "widthwise compare --widths 2,32,1 --networks 200",
    ),
    "critical": ("widthwise critical gelu", "widthwise critical tanh --format json --quiet"),
    "phase": (
        "widthwise phase tanh --C_W 0.5:2.5:21 --C_b 0:0.3:7 --format csv --figure phase.svg",
        "widthwise phase relu --out phase.nc",
    ),
    "advise": (
        "widthwise advise --widths 4,49x128,1 --activation tanh --C_W 3",
        "widthwise advise --widths 2,8,1 --activation relu --C_W 2 --out advice.html",
        "widthwise advise my_models:large --base my_models:small --rule mup --optimiser adamw",
    ),
    "audit": ("widthwise audit torch.nn:Transformer --out audit.html",),
    "predict": (
        "widthwise predict --widths 2,64,1 --data xor --format csv",
        "widthwise predict --widths 2,64,1 --data xor --loss logistic --time 5",
        "widthwise predict --widths 2,64,1 --data xor --order 1 --cumulants 4",
        "widthwise predict --learning-rate 0.15 --steps 40 --schedule cosine --warm-up 10",
        "widthwise predict --spec study.toml --order 1 --out predicted.nc",
    ),
    "equalise": ("widthwise equalise --widths 2,4x64,1 --activation tanh",),
    "couplings": ("widthwise couplings --widths 2,64,1 --C_b 0.1 --data circle --points 2",),
    "trained_kernel": ("widthwise trained_kernel --widths 2,64,1 --data xor --learning-rate 0.2 --steps 20",),
    "posterior": ("widthwise posterior --widths 2,64,1 --data xor --noise 0.01 --order 1 --format csv",),
    "evidence": ("widthwise evidence --activation erf --data xor --depths 2,3 --hidden 1024 --out evidence.nc",),
    "train": ("widthwise train --spec study.toml --networks 50 --out trained.nc",),
    "report": (
        "widthwise report --widths 1,8,1 --data sine --points 2 --networks 0 --trained 0 --out report.html",
        "widthwise report --from report.html --out again.html",
    ),
    "lab": ("widthwise lab --list",),
    "explore": ("widthwise explore --help",),
    "doctor": ("widthwise doctor",),
}
