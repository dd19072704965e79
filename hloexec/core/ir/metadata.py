"""The origin of an instruction: names and source positions that frameworks attach."""

from __future__ import annotations

from hloexec.core.structs import frozen
from hloexec.core.values import Pairs


@frozen
class Metadata:
    """`metadata={…}` of an instruction."""

    op_type: str | None = None
    op_name: str | None = None
    source_file: str | None = None
    source_line: int | None = None
    source_end_line: int | None = None
    source_column: int | None = None
    source_end_column: int | None = None
    stack_frame_id: int | None = None
    profile_type: tuple[int, ...] | None = None
    deduplicated_name: str | None = None
    scheduling_name: str | None = None
    metadata_payload: str | None = None
    unknown: Pairs = ()
    """Fields of a newer XLA, verbatim."""


@frozen
class FileLocation:
    """A row of the FileLocations table; ids count from 1, as in the text. A position that is not known is 0."""

    file_name_id: int
    function_name_id: int
    line: int
    end_line: int = 0
    column: int = 0
    end_column: int = 0


@frozen
class StackFrame:
    """A row of the StackFrames table; a parent of its own id or 0 ends the chain."""

    file_location_id: int
    parent_frame_id: int


@frozen
class StackFrames:
    """The tables that `stack_frame_id` points into."""

    file_names: tuple[str, ...] = ()
    function_names: tuple[str, ...] = ()
    file_locations: tuple[FileLocation, ...] = ()
    stack_frames: tuple[StackFrame, ...] = ()


@frozen
class Statistics:
    """`statistics={visualizing_index=…, name=value, …}`; `visualizing_index` None for `{}`."""

    visualizing_index: int | None = None
    values: tuple[tuple[str, float], ...] = ()


@frozen
class ResultAccuracy:
    """`result_accuracy={mode=…}` or `={tolerance={ulps=…,rtol=…,atol=…}}`."""

    mode: str | None = None
    ulps: float | None = None
    rtol: float | None = None
    atol: float | None = None


@frozen
class OriginalValue:
    """`origin={…}`: the values of the module before optimization that this one corresponds to, verbatim."""

    text: str
