"""What the ranks of an MPI communicator tell one another before and after runs, without pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Module
from hloexec.core.tree import flat, mapped, of_sequence, rebuilt
from hloexec.core.values import TOKEN, Array, Value
from hloexec.core.wording import argument
from hloexec.engine.devices.topology import Topology
from hloexec.engine.exec.lockstep.parcels import Comm, handed
from hloexec.engine.options import Options
from hloexec.errors import InputError
from hloexec.language.text.printer import text_of
from hloexec.ops.identity import rounding, versions

_ROUNDING = "rounding"


def facts_of(module: Module, topology: Topology, options: Options) -> dict[str, str]:
    """What must be the same in all processes of a run, by what it is called."""
    elided = options.elided if isinstance(options.elided, str) else f"given for {', '.join(sorted(options.elided))}"
    is_exact = all(policy.is_exact for policy in options.numerics.parts)
    return {
        **versions(),
        "the number of devices": str(topology),
        "the module": hashlib.sha256(text_of(module).encode(errors="surrogatepass")).hexdigest()[:16],
        "numerics": options.numerics.name,
        "the seed": str(options.seed),
        "computation": str(options.computation),
        "elided": elided,
        "unknown": options.unknown,
        "planner": str(options.planner),
        _ROUNDING: "any" if is_exact else rounding(),
    }


def require_same(facts: Sequence[Mapping[str, str]]) -> None:
    """InputError where the facts of a rank are not those of the first one."""
    for rank, others in enumerate(facts):
        for subject, value in facts[0].items():
            if others.get(subject) == value:
                continue
            if subject == _ROUNDING:
                exact = argument("numerics", "exact")
                raise InputError(
                    f"rank {rank} rounds products or functions otherwise than rank 0, as other processors and builds "
                    "of NumPy and BLAS do: results of the two are not those of one machine; those of "
                    f"{exact} do not depend on it"
                )
            raise InputError(
                f"ranks must run the same, but {subject} differs: {value} on rank 0, {others.get(subject)} on rank "
                f"{rank}"
            )


def gathered(comm: Comm, record: Any) -> list[Any]:
    """What JSON can hold, of all ranks."""
    own = np.frombuffer(json.dumps(record).encode(), np.uint8)
    sizes = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([own.size], np.int64), sizes)
    texts = np.empty(int(sizes.sum()), np.uint8)
    comm.Allgatherv(own, [texts, sizes.tolist()])
    ends = np.cumsum(sizes).tolist()
    return [json.loads(texts[end - size : end].tobytes()) for size, end in zip(sizes.tolist(), ends, strict=True)]


def ranks_of_machine(gather: Callable[[Any], list[Any]]) -> int:
    """How many ranks run on the machine of this one, given what gathers the records of all."""
    from mpi4py import MPI

    name = MPI.Get_processor_name()
    return gather(name).count(name)


def at_first(comm: Comm, values: Sequence[Value]) -> list[Value]:
    """On rank 0 the values of the devices of all ranks, in their order, none on the others; devices whose leaves have
    the same bits get one array."""
    own: dict[str | None, Array] = {}
    trees = []
    for value in values:
        own |= {_key(leaf): np.asarray(leaf, order="C") for leaf in flat(value) if isinstance(leaf, np.ndarray)}
        trees.append(mapped(value, _key))
    records = gathered(comm, trees)
    owners: dict[str, int] = {}
    for rank, tree in enumerate(records):
        for key in flat(tree, of_sequence):
            if key is not None:
                owners.setdefault(key, rank)
    sent = [(key, own[key]) for key, rank in owners.items() if rank == comm.rank]
    arrays = dict(handed(comm, sent))

    def leaf(key: str | None) -> Any:
        return TOKEN if key is None else arrays[key]

    return [] if comm.rank else [rebuilt(tree, of_sequence, leaf) for theirs in records for tree in theirs]


def _key(leaf: Any) -> str | None:
    """Equal for arrays of the same bits; None for a token."""
    if not isinstance(leaf, np.ndarray):
        return None
    data = np.asarray(leaf, order="C").reshape(-1).view(np.uint8)
    digest = hashlib.blake2b(data.data, digest_size=16).hexdigest()
    return json.dumps([element_type_of(leaf.dtype).name, list(leaf.shape), digest])
