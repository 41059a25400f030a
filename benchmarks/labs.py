"""Calibration of the labs: how often each holds over many sets of seeds, and rejects each wrong prediction.

    PYTHONPATH=src python benchmarks/labs.py [LAB …] [--sets 40] [--processes 2] [--minutes 8] [--file FILE …]
                                             [--docs FOLDER] [--claims]

A set is three seeds, 0 to 2, 3 to 5 and so on, and its run a quick one. One line of JSON a size and seed is added to
the file as soon as it is measured: an interrupted run goes on where it stopped. What every complete set said goes to
the record, results/labs.json: sets that stand there are not measured again, so that they add up over runs and machines
as long as the lab is the same, its file but for docstrings, comments and drawing.

Work that several machines or calls share: `--minutes` starts nothing new after so long, and of several files all are
read and the first is written, so that shards are merged by naming them all with `--processes 0`.

`--claims` shows how the pulls of every claim are spread, which of a calibrated one are about 1; `--docs` writes the
numbers of the documentation: the table of shares, and in each lab's page the claims of the first set.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

SEEDS_PER_SET = 3
#: What every set said, of one version of each lab.
RECORD = Path(__file__).parent / "results" / "labs.json"
#: Every process has one core: threads within one gain nothing.
ONE_CORE = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


def fingerprint(source: Path) -> str:
    """Of what a lab's file does: its syntax tree without docstrings and drawing."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            node.body = body[1:]  # pyright: ignore[reportAttributeAccessIssue]
    kept = [node for node in tree.body if "draw" not in getattr(node, "name", "").split("_")]
    return hashlib.sha256("\n".join(map(_shape, kept)).encode()).hexdigest()[:12]


def _shape(node: Any) -> str:
    """A syntax tree as text, the same in every version of Python: fields that are empty are left out."""
    if isinstance(node, list):
        return f"[{','.join(map(_shape, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
    return f"{type(node).__name__}({','.join(f'{name}={_shape(value)}' for name, value in fields)})"


def measure(lab: str, size: int, seed: int) -> dict[str, Any]:
    """One line of the file."""
    from widthwise.labs import get_lab
    from widthwise.labs.runner import run_once
    from widthwise.memory import forget_programs

    start = time.process_time()
    try:
        claims = [
            asdict(claim) | {"freedom": _finite(claim.freedom)} for claim in run_once(get_lab(lab), size, seed).claims
        ]
        found: dict[str, Any] = {"claims": claims}
    except Exception as error:  # counted as a lab that does not hold
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    forget_programs()
    return {"size": size, "seed": seed, "seconds": round(time.process_time() - start, 2)} | found


def cold_seconds(lab: str) -> float:
    """Processor seconds of a quick run in a process of its own, with nothing compiled before."""
    import jax

    from widthwise.labs import run_lab

    jax.config.update("jax_enable_compilation_cache", False)
    start = time.process_time()
    run_lab(lab, quick=True, progress=False)
    return round(time.process_time() - start, 1)


def _finite(freedom: float) -> float | None:
    return freedom if math.isfinite(freedom) else None


def read(files: list[Path]) -> dict[tuple[str, str], dict[tuple[int, int], dict[str, Any]]]:
    """Lines by lab and fingerprint, then by size and seed; a last line that is not whole is left out."""
    found: dict[tuple[str, str], dict[tuple[int, int], dict[str, Any]]] = defaultdict(dict)
    for line in (line for file in files if file.exists() for line in file.read_text(encoding="utf-8").splitlines()):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[entry["lab"], entry["version"]][entry["size"], entry["seed"]] = entry
    return found


def fill(labs: dict[str, Any], sets: int, processes: int, minutes: float, files: list[Path]) -> None:
    """Measure what the files do not have yet, and write it to the first of them; start nothing new after `minutes`."""
    known, latest = read(files), time.monotonic() + 60.0 * minutes
    missing = [
        (name, size, seed)
        for number in range(sets)
        for name, lab in labs.items()
        if number not in lab["known"]
        for size in lab["sizes"]
        for seed in _seeds(number)
        if (size, seed) not in known[name, lab["version"]]
    ]
    if not missing:
        return
    print(f"{len(missing)} runs to do", flush=True)
    files[0].parent.mkdir(parents=True, exist_ok=True)
    context, left, running = multiprocessing.get_context("spawn"), iter(missing), {}
    with ProcessPoolExecutor(processes, mp_context=context) as pool, files[0].open("a", encoding="utf-8") as out:
        try:
            for done in itertools.count():
                # one more than there are processes: none waits for the next
                for task in itertools.islice(left, max(processes + 1 - len(running), 0)):
                    if time.monotonic() < latest:
                        running[pool.submit(measure, *task)] = task[0]
                if not running:
                    break
                job = next(as_completed(running))
                name = running.pop(job)
                out.write(json.dumps({"lab": name, "version": labs[name]["version"], **job.result()}) + "\n")
                out.flush()
                if (done + 1) % 50 == 0:
                    print(f"{done + 1} of {len(missing)}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise


def verdicts(entries: dict[tuple[int, int], dict[str, Any]], sizes: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
    """Number and verdict of every set of seeds that is complete; the text of an error in place of a verdict."""
    from widthwise.labs.claims import Claim
    from widthwise.labs.verdict import ClaimRow, Verdict

    for number in sorted({seed // SEEDS_PER_SET for _, seed in entries}):
        seeds = _seeds(number)
        if any((size, seed) not in entries for size in sizes for seed in seeds):
            continue
        found = [[entries[size, seed] for seed in seeds] for size in sizes]
        errors = [entry["error"] for some in found for entry in some if "error" in entry]
        if errors:
            yield number, errors[0]
            continue
        rows = []
        for size, some in zip(sizes, found, strict=True):
            by_claim: dict[str, list[Claim]] = defaultdict(list)
            for entry in some:
                for claim in entry["claims"]:
                    by_claim[claim["what"]].append(Claim(**claim | {"freedom": claim["freedom"] or math.inf}))
            rows += [ClaimRow(size, tuple(claims)) for claims in by_claim.values()]
        yield number, Verdict(rows)


def _seeds(number: int) -> range:
    return range(SEEDS_PER_SET * number, SEEDS_PER_SET * (number + 1))


def add_to_record(own: dict[str, Any], found: dict[int, Any]) -> None:
    """Enter the verdicts of sets: by what a set was refuted, and which wrong predictions it did not reject."""
    for number, verdict in found.items():
        own["sets"] = sorted({*own["sets"], number})
        if isinstance(verdict, str):
            own["refuted"][str(number)] = [verdict]
            continue
        own["tests"] = verdict.tests
        own["wrong"] = [list(key) for key in verdict.rejected]
        if not verdict.agrees:
            own["refuted"][str(number)] = sorted({r.claim for r in verdict.rows if r.probability < verdict.level})
        if not verdict.discriminates:
            own["not rejected"][str(number)] = [list(key) for key, seen in verdict.rejected.items() if not seen]


def rejected(own: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Of every claim and wrong prediction, the share of sets on which it was rejected."""
    missed = Counter(tuple(key) for some in own["not rejected"].values() for key in some)
    return {tuple(key): 1.0 - missed[tuple(key)] / len(own["sets"]) for key in own["wrong"]}


def print_summary(name: str, own: dict[str, Any]) -> None:
    sets, shares = len(own["sets"]), rejected(own)
    holds = f"{sets:3d} sets  holds {1 - len(own['refuted']) / sets:6.1%}"
    wrong = f"{len(shares):2d} wrong predictions, each rejected {min(shares.values(), default=math.nan):6.1%} or more"
    print(f"{name:24s} {holds}  {wrong}  {own['seconds']:5.1f} s a quick run")
    for number, claims in own["refuted"].items():
        print(f"    set {number} refuted by: {'; '.join(claims)}")
    for (claim, what), share in shares.items():
        if share < 0.95:
            print(f"    rejected {share:.0%}: {claim}: {what}")


def print_claims(name: str, found: Iterable[Any]) -> None:
    """Mean and spread of the pulls of single seeds, and their smallest probability."""
    pulls: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for verdict in found:
        for row in () if isinstance(verdict, str) else verdict.rows:
            pulls[row.claim, row.size] += row.each
    for (claim, size), each in pulls.items():
        values = [c.pull for c in each]
        mean = sum(values) / len(values)
        spread = (
            math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1)) if mean < math.inf else math.inf
        )
        least = min(c.probability for c in each)
        print(f"  {name} {size:5d} {claim:70s} pulls {mean:7.2f} ± {spread:5.2f}, least p {least:.1e}")


PAGE = """# How often a lab is right

Every lab was run on many sets of three seeds that nobody chose, 0 to 2, 3 to 5 and so on, at the sizes of a quick run.
A lab whose statement is right is refuted by chance in at most 1 % of its runs ([how](index.md)). *Holds* is the share
of sets on which no claim was refuted; *rejected* is the share of sets on which a wrong prediction, or a control, was
rejected, for the one that is hardest to reject. `make bench` repeats it and adds to it (`benchmarks/labs.py`; what
every set said is kept in `benchmarks/results/labs.json`, for one version of each lab).

Seconds are processor seconds of one quick run with nothing compiled before, half of which go into compiling in the
longest ones; what is compiled is kept for the next run. Experiments of a lab run side by side on all cores.

| lab | sets | tests | holds | wrong predictions | rejected at least | seconds |
|---|---|---|---|---|---|---|
"""


def page(record: dict[str, dict[str, Any]]) -> str:
    """The page of the documentation."""
    lines, refuted, wrong = [], [], []
    for name, own in record.items():
        sets, shares = len(own["sets"]), rejected(own)
        least = min(shares.values(), default=math.nan)
        lines.append(
            f"| {name} | {sets} | {own['tests']} | {1 - len(own['refuted']) / sets:.1%} | {len(shares)} "
            f"| {least:.0%} | {own['seconds']:.0f} |"
        )
        for number, claims in own["refuted"].items():
            first, *_, last = _seeds(int(number))
            refuted.append(f"| {name} | {first} to {last} | {_cell('; '.join(claims))} |")
        wrong += [
            f"| {name} | {_cell(claim)} | {_cell(what)} | {share:.0%} |" for (claim, what), share in shares.items()
        ]
    if refuted:
        lines += ["", "## Sets that were refuted", "", "| lab | seeds | claims |", "|---|---|---|", *refuted]
    lines += ["", "## Every wrong prediction", "", "| lab | claim | wrong prediction | rejected |", "|---|---|---|---|"]
    return PAGE + "\n".join([*lines, *wrong]) + "\n"


def write_table(file: Path, verdict: Any) -> None:
    """Put the claims of the first set into a lab's page, folded, below its figure."""
    from widthwise.labs.verdict import COLUMNS
    from widthwise.text import text_table

    text = file.read_text(encoding="utf-8")
    text = re.sub(r"\n(\?\?\? note \"Every claim.*?\n    ```|```text\n.*?\n```)\n", "", text, flags=re.S)
    table = text_table(COLUMNS, [row.cells for row in verdict.rows], left=True, limit=None)
    lines = ["```text", *table.splitlines(), verdict.basis, f"verdict: {verdict.text}", "```"]
    folded = "\n".join(
        ["", '??? note "Every claim: a quick run, seeds 0, 1, 2"', "", *(f"    {line}" for line in lines)]
    )
    figure = re.search(r"^!\[.*$", text, flags=re.M)
    place = figure.end() if figure else len(text.rstrip())
    file.write_text(text[:place] + "\n" + folded + text[place:], encoding="utf-8")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labs", nargs="*", help="labs by name; all if none is given")
    parser.add_argument("--sets", type=int, default=40)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="0: measure nothing, only report")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after so long nothing new is started")
    parser.add_argument(
        "--file", type=Path, nargs="+", default=[Path("out") / "labs.jsonl"], help="the first is written"
    )
    parser.add_argument("--record", type=Path, default=RECORD, help="the verdicts of all sets so far")
    parser.add_argument("--cold", action="store_true", help="measure the seconds of a quick run, nothing compiled")
    parser.add_argument("--docs", type=Path, help="folder of the labs' pages, whose numbers are written")
    parser.add_argument("--claims", action="store_true", help="how the pulls of every claim are spread")
    arguments = parser.parse_args()
    os.environ.update({key: os.environ.get(key, value) for key, value in ONE_CORE.items()})

    from widthwise.labs import get_lab, names
    from widthwise.labs.catalogue import LABS

    record = json.loads(arguments.record.read_text(encoding="utf-8")) if arguments.record.exists() else {}
    labs = {
        lab.name: {"sizes": lab.quick_sizes, "version": fingerprint(LABS[lab.name])}
        for lab in map(get_lab, arguments.labs or names())
    }
    for name, lab in labs.items():
        if record.get(name, {}).get("version") != lab["version"]:
            record[name] = {"version": lab["version"], "seconds": 0.0, "tests": 0, "sets": [], "wrong": []}
            record[name] |= {"refuted": {}, "not rejected": {}}
        lab["known"] = record[name]["sets"]
    if arguments.processes:
        fill(labs, arguments.sets, arguments.processes, arguments.minutes, arguments.file)
    entries = read(arguments.file)
    for name, lab in labs.items():
        measured, own = entries[name, lab["version"]], record[name]
        found = dict(verdicts(measured, lab["sizes"]))
        add_to_record(own, found)
        if arguments.cold:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                own["seconds"] = pool.submit(cold_seconds, name).result()
        if not own["sets"]:
            del record[name]
            continue
        print_summary(name, own)
        if arguments.claims:
            print_claims(name, found.values())
        if arguments.docs and not isinstance(found.get(0, ""), str):
            write_table(arguments.docs / f"{name.replace('-', '_')}.md", found[0])
    record = {name: record[name] for name in names() if name in record}
    lines = [f"{json.dumps(name)}: {json.dumps(own, ensure_ascii=False)}" for name, own in record.items()]
    arguments.record.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    if arguments.docs:
        (arguments.docs / "calibration.md").write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main()
