"""`hloexec compare`: what it prints, its exit codes, and wrong uses of it."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from hloexec.language import literals
from tests.cli.test_run_values import _snapshot
from tests.command_line import CommandLine
from tests.records import read_record
from tests.text.building import op

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def _files(empty_folder: Path) -> None:
    off = X.copy()
    off[1, 2] += 1
    literals.save("x.npz", (X, X.astype(np.int32)))
    literals.save("near.npz", (np.nextafter(X, np.float32(99)), X.astype(np.int32)))
    literals.save("off.npz", (off, X.astype(np.int32)))
    literals.save("narrow.npz", X.astype(ml_dtypes.bfloat16))
    np.save("x.npy", X)
    np.save("thirds.npy", X / 3)
    literals.save("thirds.npz", (X / 3).astype(ml_dtypes.bfloat16))
    np.savez("numpy.npz", X, X.astype(np.int32))
    np.savez("raw.npz", X.astype(ml_dtypes.bfloat16))
    np.savez("named.npz", loss=X)
    np.savez("renamed.npz", gain=X)
    np.savez("pickled.npz", **{"0": np.array([{}], object)})
    Path("short.npz").write_bytes(Path("x.npz").read_bytes()[:-40])
    Path("text.npz").write_text("no archive")
    Path("module.hlo").write_text(op("bf16[3,4] add(x, x)", x="bf16[3,4]"))


def test_equal_near_and_off(cli: CommandLine) -> None:
    assert cli("compare x.npz x.npz") == "equal  2 arrays\n"
    assert cli("compare near.npz x.npz").startswith("rounding only  2 arrays, 1 of them bit for bit\n")
    out = cli("compare off.npz x.npz", code=1)
    assert out.startswith("different  1 of 2 arrays\n")
    assert "[1, 2] 7.0 6.0 1 2.1e+06".split() in [line.split() for line in out.splitlines()]
    assert out.endswith("  hloexec compare off.npz x.npz --module MODULE\n")


def test_agreement_says_how_much_of_it_is_of_nans(cli: CommandLine) -> None:
    lost = np.full(4, np.nan, np.float32)
    np.savez("lost.npz", **{"0": lost, "1": np.array([1, np.nan], np.float32)})
    assert cli("compare lost.npz lost.npz") == "equal  2 arrays, 5 of 6 elements NaN on both sides\n"
    assert str(hloexec.compare(lost, lost)) == "equal: 4 of 4 elements NaN on both sides"


def test_json_holds_everything(cli: CommandLine) -> None:
    record = cli.record("compare off.npz x.npz", code=1)
    assert (record["verdict"], record["agrees"]) == ("different", False)
    first, second = record["leaves"]
    measured = first["measured"]
    assert (first["label"], measured["mismatches"], measured["max_absolute_error"]) == ("0", 1, 1)
    assert measured["worst"][0]["index"] == [1, 2] and measured["ulp_percentiles"]["100"] == 2**21
    assert second["verdict"] == "equal"


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ("near.npz x.npz --ulp 1", "within tolerance"),
        ("near.npz x.npz --rtol 1e-9", "different"),
        ("off.npz x.npz --atol 1", "within tolerance"),
        ("numpy.npz x.npz", "equal"),
        ("narrow.npz x.npy", "equal"),
        ("thirds.npz thirds.npy", "rounding only"),
        ("raw.npz narrow.npz --module module.hlo", "equal"),
        ("narrow.npz raw.npz", "equal"),
        ("named.npz x.npy", "equal"),
        ("named.npz renamed.npz", "different"),
        ("near.npz x.npz --contraction-length 1", "rounding only"),
        ("off.npz x.npz --atol 0.1 --check-error median", "median within tolerance"),
        ("off.npz x.npz --atol 0.1 --check-error p99", "different"),
        ("off.npz x.npz --atol 1 --check-error mean", "within tolerance"),
    ],
)
def test_verdicts(arguments: str, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["compare", *arguments.split(), "--json"])
    assert read_record(capsys.readouterr().out)["verdict"] == verdict
    assert code == (verdict == "different")


def test_a_verdict_on_the_median_says_no_more(cli: CommandLine) -> None:
    out = cli("compare off.npz x.npz --atol 0.1 --check-error median")
    assert out.startswith("median within tolerance  2 arrays")
    assert "0: the median of the errors: within the tolerance; beyond it: 1 of 12 elements" in out
    assert "tolerance given: atol 0.1, for the median of the errors alone" in out


def test_snapshots_have_results(tmp_path: Path, cli: CommandLine) -> None:
    snapshot = _snapshot(tmp_path, [1.0], [2.0], result=[3.0, 4.0])
    np.save("given.npy", np.array([3, 4], np.float32))
    assert cli("compare given.npy", snapshot) == "equal  1 array\n"


def test_indices_are_compared_by_what_they_select(cli: CommandLine) -> None:
    np.save("values.npy", np.array([[2, 2, 1]], np.float32))
    np.save("a.npy", np.array([0], np.int32))
    np.save("b.npy", np.array([1], np.int32))
    cli("compare a.npy b.npy", code=1)
    assert "select values that agree" in cli("compare a.npy b.npy --selects value=values.npy")


def test_top_limits_the_table(cli: CommandLine) -> None:
    literals.save("many.npz", tuple(X for _ in range(30)))
    literals.save("others.npz", tuple(X + 1 for _ in range(30)))
    assert "… and 27 more (--top 0 shows all)" in cli("compare many.npz others.npz --top 3", code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("x.npz", "Missing argument 'EXPECTED'"),
        ("x.npz missing.npz", "cannot read 'missing.npz': No such file or directory"),
        ("x.npz .", ". is a folder; name a file in it"),
        ("x.npz short.npz", "'short.npz' is not a complete .npz file"),
        ("x.npz text.npz", "'text.npz' is neither a .npz nor a .npy file"),
        ("x.npz pickled.npz", "holds Python objects (pickled), not an array of numbers; it is not read"),
        ("x.npz module.hlo", "'module.hlo' holds a module, but no result"),
        ("x.npz raw.bin", "of numbers without type and shape, numpy.save makes a .npy file"),
        ("raw.npz x.npy", "holds raw bytes (|V2) without a type"),
        ("x.npz x.npz --atol -1", "atol must not be negative"),
        ("x.npz x.npz --check-error mean", "--check-error needs a tolerance to hold the errors to: --atol"),
        (
            "x.npz x.npz --atol 1 --check-error p98",
            "'p98' is not one of 'max', 'p99', 'median', 'mean'",
        ),
        ("x.npz x.npz --rtol much", "'much' is not a valid float"),
        ("x.npz x.npz --numerics sloppy", "unknown numerics policy 'sloppy'"),
        ("x.npz x.npz --inputs x.npz", "--inputs needs --module"),
        ("x.npz x.npz --module missing.hlo", "cannot read missing.hlo"),
        ("x.npz x.npz --module module.hlo", "the result of m, bf16[3,4], has no leaf '0'"),
        (
            "x.npz x.npz --module module.hlo --contraction-length 3",
            "--contraction-length and --module cannot be combined",
        ),
        ("x.npz x.npz --selects 0", "'0' is not of the form LEAF=FILE.npy"),
        ("x.npz x.npz --selects 9=x.npy", "selects names leaf '9', but there are 0, 1"),
        ("near.npz off.npz --top -1", "--top"),
    ],
)
def test_wrong_uses(arguments: str, message: str, cli: CommandLine) -> None:
    Path("raw.bin").write_bytes(np.arange(90, dtype=np.uint8).tobytes())
    captured = cli.ended(f"compare {arguments}", code=2)
    assert message in captured.err and not captured.out


def test_a_module_for_something_else_is_refused(cli: CommandLine) -> None:
    argument: Any = "compare x.npy x.npy --module module.hlo --inputs numpy.npz".split()
    assert "numpy.npz" in cli.complaint(*argument)
