"""Keys of what commands print that make modules out of others."""

from __future__ import annotations

from collections.abc import Mapping

MAKING: Mapping[str, tuple[str, str]] = {
    # Extracted modules.
    "has_same_bits": ("flag", "Whether the extracted module gives the same bits."),
    "differing": ("[compared_leaf]", "The arrays of the extracted module's result that are not equal."),
    # Smaller modules.
    "output": ("text", "The file that was written; null where none was."),
    "argument_bytes_before": ("integer", "The size of the inputs of all devices, as it was."),
    "argument_bytes": ("integer", "The size of the inputs of all devices."),
    "total_flops_before": ("integer", "Operations of contractions on all devices, as they were."),
    "total_flops": ("integer", "Operations of contractions on all devices."),
    "is_proven": ("flag", "Whether the sizes are the best for their bound; else the search ended at its limit."),
    "device_count_before": ("integer", "How many devices the module ran on before."),
    "device_axes": ("[device_axis]", "The axes of the grid of devices, major to minor; none where their number stays."),
    "stride": ("integer", "By how much the numbers of devices differ that are next to one another along the axis."),
    "size_changes": ("[size_change]", "The sizes of dimensions that changed."),
    "kept_sizes": ("[kept_size]", "The sizes of dimensions that stay, and why."),
    "size_constants": ("[size_constant]", "Constants that may encode the size of a dimension."),
    "size": ("integer", "The size of a dimension, as it was."),
    "new_size": ("integer", "What it became."),
    "array_count": ("integer", "Of how many arrays it is a dimension."),
    "parameter_dimensions": ("[text]", "Inputs of which it is a dimension, such as tokens[1]."),
    "operations": ("[text]", "The operations in which it occurs most often, as a framework named them."),
    "number_before": ("number", "A number in a constant, as it was."),
    "number_after": ("number", "What it became."),
    "follows_size": ("flag", "Whether it encodes the size for certain; else it was guessed, or left as it is."),
    # Minified modules.
    "failure": ("text", "What the smaller module shows."),
    "given_instruction_count": ("integer", "How many instructions there were that compute something."),
    "largest_dimension": ("integer", "The largest size of a dimension that is left."),
    "minified_device_count": ("integer", "How many devices the small module runs on."),
    "accepted_count": ("integer", "How many of the modules that were tried became the smallest so far."),
    "check_outcomes": ("[check_outcome]", "How often the check ended how."),
    "ended_as": ("pass|fail|crash|hang", "With exit code 0, with another, by a signal, or not in time."),
    "ended_count": ("integer", "How often it ended so."),
    "total_seconds": ("number", "How long all of it took."),
    "is_confirmed": ("flag", "Whether the small module shows the failure, read from its text."),
    "hlo_text": ("text", "The small module."),
    "failing_command": ("text", "The command that shows the failure, in the folder that was written."),
}  # fmt: skip
