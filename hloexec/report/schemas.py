"""What `--json` prints: each record with its keys, and each key with its type and its meaning.

A key means the same wherever it stands, so there is one table of keys. Counts end in `_count` and sizes in `_bytes`;
every key of a record is always there, and null where there is nothing to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["KEYS", "RECORDS", "VERSION", "identified", "json_schema", "printed_records"]

VERSION = 1
"""Of all schemas: one more where a key is renamed, left out or given another meaning; not where one is added."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WORD: Mapping[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]},
    "flag": {"type": "boolean"},
}
"""The types that are no records; JSON has no infinities and no NaN, which are texts."""
_VERDICTS = (
    "equal|rounding only|within tolerance|99 % within tolerance|median within tolerance|mean within tolerance|different"
)

KEYS: Mapping[str, tuple[str, str]] = {
    # What every record says of itself, and of what was run.
    "schema": ("text", "Which record it is."),
    "version": ("integer", "The version of its schema."),
    "warnings": ("[text]", "What was warned of, as on standard error."),
    "file": ("text", "The file that was given."),
    "folder": ("text", "The folder that was written or read."),
    "module": ("text", "The module's name."),
    "seed": ("integer", "Of random inputs, and of the random numbers that the module draws."),
    "numerics": ("text", "The numerics policy."),
    "device_count": ("integer", "How many devices the module runs on."),
    "instruction_count": ("integer", "How many instructions there are."),
    "computation_count": ("integer", "How many computations there are."),
    "seconds": ("number", "How long the first run took."),
    # Values.
    "inputs": ("[leaf]", "The arrays of the inputs."),
    "result": ("[leaf]", "The arrays of the result."),
    "operands": ("[leaf]", "The arrays of the operands."),
    "value": ("leaf", "What the instruction gave."),
    "arrays": ("[leaf]", "The arrays of a file."),
    "remarkable": ("[event]", "The first values that are not finite, then the largest ones."),
    "label": ("text", "The place or the name, with the devices where they do not all hold the same."),
    "shape": ("text", "The shape, as HLO text."),
    "result_shape": ("text", "The shape of the result, as HLO text."),
    "index": ("[integer]", "The place in a tuple; of an element, in its array."),
    "bytes": ("integer", "How large it is."),
    "minimum": ("number", "The smallest finite element; null where none is finite."),
    "maximum": ("number", "The largest finite element; null where none is finite."),
    "mean": ("number", "The mean of the finite elements."),
    "standard_deviation": ("number", "The standard deviation of the finite elements."),
    "nan_count": ("integer", "How many elements are NaN."),
    "infinity_count": ("integer", "How many elements are infinite."),
    "hash": ("text", "A hash of the elements' bytes in logical order."),
    # Running.
    "printed": ("[literal]", "What --print asks for."),
    "stops": ("[stop]", "Where the run stopped, in order."),
    "stop_values": ("[leaf]", "The arrays of what the instruction gave; none where it has failed."),
    "failure_text": ("text", "The error of an instruction that has failed."),
    "run_state": ("ended|failed|left", "Whether the run came to its end, has failed, or was left where it stopped."),
    "printed_lines": ("[text]", "The commands, each behind a prompt, and what they printed."),
    "literal": ("text", "The value, as a literal of HLO."),
    "warm_seconds": ("timing", "How long the runs of --iterations took."),
    "iteration_count": ("integer", "How many runs there were."),
    "shortest": ("number", "The shortest time in seconds."),
    "median": ("number", "The median time in seconds."),
    "longest": ("number", "The longest time in seconds."),
    "peak_bytes": ("integer", "The most that a run holds at once, beyond its inputs."),
    "device_peak_bytes": ("integer", "The most that one device holds at once, beyond its inputs."),
    "functions": ("[text]", "The plan, as functions of Python."),
    # Places in a module and in a run.
    "entry": ("text", "The name of the entry computation."),
    "computation": ("text", "The name of the computation."),
    "instruction": ("text", "The name of the instruction."),
    "path": ("text", "Which run of the instruction: through loops, calls and fusions."),
    "iteration": ("integer", "The iteration of the innermost loop, from 0."),
    "device": ("integer", "The number of the device."),
    "devices": ("[integer]", "The numbers of the devices."),
    "hlo": ("text", "The instruction as HLO text."),
    "opcode": ("text", "The opcode."),
    "op_name": ("text", "The name that a framework gave it."),
    "source": ("[text]", "The lines of source it comes from, the innermost call first."),
    # Modules.
    "parameters": ("[parameter]", "The parameters of the entry computation."),
    "number": ("integer", "Its number, from 0."),
    "name": ("text", "Its name."),
    "parameter_bytes": ("integer", "The size of all parameters."),
    "output_bytes": ("integer", "The size of the outputs."),
    "replica_count": ("integer", "How many replicas there are."),
    "num_partitions": ("integer", "How many partitions there are."),
    "is_scheduled": ("flag", "Whether the order of instructions is that of execution."),
    "opcode_counts": ("{integer}", "How many instructions have each opcode."),
    "custom_call_counts": ("{integer}", "How many instructions call each target."),
    "element_type_counts": ("{integer}", "How many instructions give each element type."),
    "contractions": ("[contraction]", "What contractions cost, by their kinds."),
    "flops": ("integer", "Operations of contractions on one device, in all their runs."),
    "run_count": ("integer", "How often it runs, as far as loops state it."),
    "loop_count": ("integer", "How many loops there are."),
    "loops_without_trip_count": ("integer", "How many loops do not state how often they run."),
    "constant_count": ("integer", "How many constants there are."),
    "elided_constant_count": ("integer", "How many constants the text leaves out."),
    "unsupported": ("[requirement]", "What the module needs and hloexec does not have."),
    "kind": ("text", "Of an error, a finding, a contraction, an allocation or what is needed: of which kind it is."),
    "reason": ("text", "Why, or what it is, in words."),
    "notes": ("[text]", "What else there is to say."),
    "computations": ("[called_computation]", "The computations; null without --computations."),
    "calling_computation": ("text", "The computation that calls it first."),
    "calling_instruction": ("text", "The instruction that calls it first."),
    "calling_opcode": ("text", "The opcode of that instruction."),
    "opcodes": ("[opcode]", "The opcodes there are."),
    "minimum_operands": ("integer", "The fewest operands it takes."),
    "maximum_operands": ("integer", "The most operands it takes; null for any number."),
    "role": ("text", "What it is to a plan."),
    "is_elementwise": ("flag", "Whether it computes each element by itself."),
    "is_supported": ("flag", "Whether it runs on one device."),
    "documentation": ("text", "What it computes."),
    "element_types": ("[text]", "The element types that it takes; null for all, and without --types."),
    # Comparisons.
    "actual_file": ("text", "The file ACTUAL."),
    "expected_file": ("text", "The file EXPECTED."),
    "against": ("text", "What the result was compared with."),
    "comparison": ("comparison", "How far the results are apart."),
    "verdict": (f"{_VERDICTS}|agree|differ|not compared", "What it comes to."),
    "agrees": ("flag", "Whether nothing differs but for what is tolerated."),
    "leaves": ("[compared_leaf]", "The arrays of either side, one by one."),
    "actual_shape": ("text", "The shape of the actual array, as HLO text; `nothing` where there is none."),
    "expected_shape": ("text", "The shape of the expected array, as HLO text; `nothing` where there is none."),
    "element_count": ("integer", "How many elements there are."),
    "note": ("text", "Why it cannot be compared, or how it was."),
    "measured": ("measurement", "How far the arrays are apart; null where their shapes do not allow it."),
    "ulp_type": ("text", "The element type whose units in the last place are meant."),
    "unequal_count": ("integer", "How many elements do not have the same bits."),
    "mismatch_count": ("integer", "How many elements are beyond the tolerance."),
    "max_absolute_error": ("number", "The largest absolute error of finite elements."),
    "mean_absolute_error": ("number", "The mean of the absolute errors of finite elements."),
    "max_relative_error": ("number", "The largest error, relative to the expected value."),
    "mean_relative_error": ("number", "The mean of the errors, relative to the expected values."),
    "ulp_percentiles": ("{number}", "Errors in units in the last place, by percentiles."),
    "cosine": ("number", "The cosine of the angle between both arrays as vectors."),
    "nans": ("places", "Where elements are NaN."),
    "infinities": ("places", "Where elements are infinite."),
    "both": ("integer", "In how many places on both sides."),
    "actual_only": ("integer", "In how many places of the actual array only."),
    "expected_only": ("integer", "In how many places of the expected array only."),
    "unlike_zero_count": ("integer", "How many zeros have the other sign."),
    "mean_severity": ("number", "The mean of the errors in units of the tolerance."),
    "infinite_mismatch_count": ("integer", "How many elements beyond the tolerance have no finite error."),
    "first": ("[difference]", "The first elements beyond the tolerance."),
    "worst": ("[difference]", "The elements of the largest errors, in units of the tolerance."),
    "actual": ("element", "The element of the actual array."),
    "expected": ("element", "The element of the expected array."),
    "absolute_error": ("number", "The absolute error."),
    "ulps": ("number", "The error in units in the last place."),
    "severity": ("number", "The error in units of the tolerance; the error itself where nothing is tolerated."),
    "error_map": ("error_map", "The worst error in each cell of a grid over the last two dimensions."),
    "rows": ("integer", "The size of the last dimension but one."),
    "columns": ("integer", "The size of the last dimension."),
    "cells": ("[[number]]", "The worst error in units of the tolerance, by the rows of the grid."),
    "tolerance": ("tolerance", "What is tolerated."),
    "rtol": ("number", "The error that is tolerated, relative to the expected value."),
    "atol": ("number", "The absolute error that is tolerated."),
    "ulp": ("number", "The error that is tolerated, in units in the last place."),
    "is_given": ("flag", "Whether someone has chosen it."),
    "derivation": ("text", "Where it comes from."),
    "factor": ("number", "How many times its own spread an element may be off besides."),
    "check_error": ("max|p99|median|mean", "Which statistic of the errors is held to the tolerance."),
    # Narrower types.
    "step_count": ("integer", "How often the module runs, what it carries becoming parameters again."),
    "carried": ("[carried]", "The outputs that are parameters of the next step."),
    "parameter_label": ("text", "The number of the parameter, and the place within it if it is a tuple."),
    "carried_reason": ("text", "How it is known what is carried."),
    "search_share": ("number", "The share of the tolerances that the search may use."),
    "input_count": ("integer", "How many inputs the search runs on."),
    "held_back_count": ("integer", "How many other inputs the module that was found has been checked on."),
    "rejection_count": ("integer", "How often that check failed, so that the search went back."),
    "trial_count": ("integer", "How many modules were tried."),
    "work_flops": ("integer", "Operations of contractions, elementwise instructions and reductions."),
    "narrowed_flops": ("{integer}", "Of these, those in each narrow type."),
    "contraction_flops": ("integer", "Operations of contractions that could be narrowed."),
    "narrowed_contraction_flops": ("{integer}", "Of these, those in each narrow type."),
    "moved_bytes": ("integer", "Bytes that contractions and elementwise instructions on floats read and write."),
    "narrowed_bytes": ("{integer}", "Of these, those that are narrow, by their types, as many as they were before."),
    "held_outputs": ("[held_output]", "The outputs that were held to a tolerance."),
    "relative_tolerance": ("number", "The relative error that an element may have."),
    "search_deviation": ("deviation", "The largest error on the inputs of the search."),
    "held_back_deviation": ("deviation", "The largest error on the other inputs; null where there were none."),
    "input_number": ("integer", "The number of the inputs, from 0."),
    "step_number": ("integer", "The step, from 0."),
    "relative_error": ("number", "The error, relative to the element, or to the median one of its array if larger."),
    "narrowing_verdicts": ("[narrowing_verdict]", "The instructions that could be narrowed."),
    "element_type": ("text", "The element type that it has."),
    "narrow_type": ("text", "The element type that it may have; null where it keeps its own."),
    "standing": (
        "narrowed|not even alone|not with the others|out of range|too little work|not tried",
        "Whether it may be narrower, or why not.",
    ),
    "alone": ("deviation", "The largest error with no other instruction narrowed; null where that was not tried."),
    # Searches.
    "before_file": ("text", "The file or folder BEFORE."),
    "after_file": ("text", "The file or folder AFTER."),
    "before_module": ("text", "The name of the module BEFORE."),
    "after_module": ("text", "The name of the module AFTER."),
    "numerics_before": ("text", "The numerics policy of BEFORE."),
    "numerics_after": ("text", "The numerics policy of AFTER."),
    "findings": ("[diff_finding]", "The instructions to blame, the first one first."),
    "blamed": ("instruction", "The instruction of AFTER."),
    "instead_of": ("instruction", "The instruction of BEFORE in its place."),
    "is_certain": ("flag", "Whether the result is right once its value is replaced."),
    "region": ("[instruction_run]", "What AFTER computes since values that are right, if not one instruction."),
    "graph": ("[region_step]", "The region in data-flow order, with the values that it starts from."),
    "region_role": ("input|step|output", "Whether it comes in, is taken by other steps, or goes out."),
    "operand_paths": ("[text]", "The runs of instructions that it takes, through fusions and calls."),
    "equal_to": ("instruction_run", "The value of BEFORE that comes in; null of steps, and where BEFORE has none."),
    "extraction": ("extracted_pair", "What --extract has written of the first finding."),
    "before_path": ("text", "Which run of an instruction gives the result of before.hlo; null where there is none."),
    "after_path": ("text", "Which run of an instruction gives the result of after.hlo."),
    "instruction_count_before": ("integer", "How many instructions before.hlo has, parameters not counted."),
    "instruction_count_after": ("integer", "How many instructions after.hlo has, parameters not counted."),
    "extracted_verdict": ("agree|rounding only|differ", "Of these modules; null if they were not compared."),
    "matches": ("[match]", "The values that both modules have."),
    "after": ("instruction_run", "Where AFTER has it."),
    "before": ("instruction_run", "Where BEFORE has it."),
    "is_exact": ("flag", "Whether both are the same numbers."),
    "is_in_order": ("flag", "Whether the elements stand in one order."),
    "value_count": ("integer", "How many values there are."),
    "matched_value_count": ("integer", "How many of the values of AFTER the module BEFORE has."),
    "matched_share": ("number", "The share of the values of AFTER that BEFORE has."),
    "picture": ("text", "The values of AFTER in a line, a character for each or for several."),
    "modules": ("[module_steps]", "The modules of the folders."),
    "stage_count": ("integer", "How many stages of the module there are."),
    "to_blame": ("text", "The first step that changed the result."),
    "steps": ("[step]", "The steps that changed the module's text."),
    "step": ("text", "What lies between two stages."),
    "pass": ("text", "The name of the pass."),
    "pipeline": ("text", "The pipeline of the pass."),
    "diff": ("module_diff", "The two modules on the same inputs; null where one does not run."),
    "found": ("flag", "Whether NaN or infinities were found."),
    "finding": ("nan_finding", "The first instruction at which numbers go bad."),
    "later": ("[nan_event]", "Other instructions that took part."),
    "discarded": ("[nan_event]", "Where numbers went bad, but did not reach the result."),
    "nan_inputs": ("[text]", "The parameters that hold NaN."),
    "nan_from_inputs": ("flag", "Whether NaN of the inputs reach the result."),
    "event_count": ("integer", "How many values were looked at."),
    # Explaining.
    "explained_verdict": (
        "equal|rounding alone explains it|explained|none of them explains it", "What explains what is expected."
    ),
    "best": ("policy_trial", "The policy that comes nearest; of those that cannot be told apart the simplest."),
    "alike": ("[policy_trial]", "Policies that the values cannot tell from the best one."),
    "untold_instructions": (
        "[untold_choice]", "Instructions of which the values cannot tell whether they have a policy."
    ),
    "undecided": ("[text]", "Policies that may hold besides the best one: rounding hides what they would change."),
    "trials": ("[policy_trial]", "All policies that were tried, the nearest first."),
    "reference": ("policy_trial", "What the reference comes to."),
    "policy": ("text", "The policy, as --numerics takes it."),
    "instruction_names": ("[text]", "The instructions that have policies of their own."),
    "bits_explained": ("number", "Minus the binary logarithm of the share of the difference that remains."),
    "remaining": ("number", "What remains, in units of what rounding does to the elements."),
    "equal_share": ("number", "The share of elements that have the expected bits."),
    "max_ulps": ("number", "The largest distance in units in the last place."),
    "spread_ratio": ("number", "What remains, in units of what random rounding leaves; null where not measured."),
    "is_explained": ("flag", "Whether rounding explains what remains; null where that was not looked at."),
    "has_effect": ("flag", "Whether the policy changes any bit."),
    "effect_share": ("number", "How much of its effect, as opposed to the reference, is in what is expected."),
    "effect_error": ("number", "The error of that."),
    "unexplained_instructions": (
        "[explained_instruction]", "With --values: those that rounding alone does not explain, in data-flow order."
    ),
    "checked_instruction_count": ("integer", "With --values: how many instructions were looked at."),
    # Triage.
    "other_folder": ("text", "The second folder, where there are two."),
    "output_folder": ("text", "The folder in which results are kept."),
    "case_count": ("integer", "How many modules, pairs and chains of stages there are."),
    "outcome_counts": ("{integer}", "How many modules have each outcome."),
    "cause_groups": ("[cause_group]", "Modules with the same cause, those that differ first, the largest group first."),
    "group_number": ("integer", "The number of the group, from 1."),
    "triage_outcome": (
        "differ|crashed|timed out|out of memory|not compared|rounding only|agree", "What came of the module."
    ),
    "cause": ("text", "The cause in words."),
    "blamed_opcode": ("text", "The opcode to blame; null where a policy explains it, or none is known."),
    "blamed_opcode_counts": ("{integer}", "How many modules of the group blame each opcode."),
    "blamed_element_types": ("[text]", "The element types of what is to blame and of its operands."),
    "shape_class": ("array|empty|tuple", "Of what is to blame; `empty` are arrays without elements."),
    "difference_kind": ("text", "What differs: `numbers`, `NaN or infinities` or `shapes`; empty where nothing does."),
    "cause_policy": ("text", "The policy that explains it, without names of instructions."),
    "member_names": ("[text]", "The modules of the group."),
    "representative": ("text", "The smallest of them."),
    "minified": ("minified_module", "The smallest module that shows the cause; null where none was made."),
    "module_name": ("text", "Its path in the folder, without suffixes."),
    "minified_folder": ("text", "The folder of the small module."),
    "triaged_modules": ("[triaged_module]", "All modules, by their names."),
    "case_kind": ("module|pair|stages", "Whether it is a module, a pair, or a module at several stages."),
    "files": ("[text]", "The files of the module, of the pair, or of the stages in their order."),
    "different_outputs": ("[different_output]", "The arrays of the result that differ."),
    "nan_difference_count": ("integer", "How many elements are NaN on one side only."),
    "infinity_difference_count": ("integer", "How many elements are infinite on one side only."),
    "blamed_instruction": ("blamed_instruction", "The instruction to blame; null where none was found."),
    "right_hlo": ("text", "The instruction that gives the right value, as HLO text."),
    "explained_by": ("policy_found", "The policy that explains the difference; null where none does."),
    "policy_words": ("text", "The policy in words, such as TF32."),
    "alike_policies": ("[text]", "Policies that the values cannot tell from it."),
    "explains_all": ("flag", "Whether it explains all results; else what the only instruction to blame gives."),
    "is_cut": ("flag", "Whether limits of time or memory ended it."),
    "is_reused": ("flag", "Whether the output folder had it already."),
    "bad_count": ("integer", "How many elements went bad."),
    "elements": ("[bad_element]", "The first elements that went bad."),
    "element": ("element", "What the element is."),
    "operand_elements": ("[element]", "The operands' elements at the same place; null where that has no meaning."),
    "chain": ("[link]", "The instructions that led to it, the earliest first."),
    "select": ("[text]", "The patterns of --select."),
    "statistics_only": ("flag", "Whether the values themselves are left out."),
    "is_complete": ("flag", "Whether the run came to its end."),
    "value_bytes": ("integer", "The size of the values on disk."),
    "has_same_bits": ("flag", "Whether the extracted module gives the same bits."),
    "differing": ("[compared_leaf]", "The arrays of the extracted module's result that are not equal."),
    # Goldens.
    "module_hash": ("text", "SHA-256 of the module's text."),
    "checks": ("[golden_check]", "What came of each golden."),
    "outcome": ("passed|failed|broken", "What came of it; `broken`: it could not be checked."),
    "message": ("text", "The same in words."),
    "golden": ("golden", "What its golden.json says."),
    "inputs_per_device": ("integer", "One, or as many as there are devices."),
    "inputs_source": ("text", "Where the inputs come from."),
    "expected_source": ("text", "Where the result comes from."),
    "elided": ("text", "What stands for constants that the text leaves out."),
    "unknown": ("text", "What unknown library calls give."),
    "versions": ("{text}", "What it was recorded with."),
    # Memory.
    "allocation_count": ("integer", "How many allocations there are."),
    "allocated_bytes": ("integer", "What XLA allocates."),
    "target": ("text", "What the module is compiled for."),
    "peak": ("peak", "The most that is alive at once on a device."),
    "peak_by_color": ("{peak}", "The same of each memory space."),
    "time": ("integer", "The position in `sequence`."),
    "estimate": ("run_estimate", "What hloexec's own run allocates; null where it cannot run."),
    "sequence": ("[text]", "The instructions in their order."),
    "values": ("[live_value]", "All values, with when they live."),
    "color": ("integer", "The memory space."),
    "buffer": ("integer", "Values of the same buffer share memory."),
    "is_phi": ("flag", "Whether it stands for one of several values where control flow joins."),
    "live": ("[integer]", "The first and the last time at which it is needed."),
    "xla_live": ("[integer]", "The same as XLA says; null where it does not."),
    "assignment": ("assignment", "XLA's buffer assignment, compared; null where none was given."),
    "allocated_bytes_by_color": ("{integer}", "What XLA allocates in each memory space."),
    "in_use_at_most": ("peak", "The most that is in use at once."),
    "schedule_differs_at": ("integer", "The first position where the schedules differ."),
    "live_range_count": ("integer", "How many live ranges XLA gives."),
    "agreeing_live_range_count": ("integer", "How many of them are hloexec's, too."),
    "size_count": ("integer", "How many sizes were compared."),
    "peak_time": ("integer", "Where XLA has its peak."),
    "listed_peak_bytes": ("integer", "What XLA lists as alive at its peak."),
    "differences": ("[memory_difference]", "What differs."),
    "padded": ("[memory_difference]", "Values for which XLA sets aside more than their shape takes."),
    "what": ("text", "What differs."),
    "xla": ("text", "What XLA says."),
    "ours": ("text", "What hloexec says."),
    "allocations": ("[allocation]", "XLA's allocations."),
    "allocated_values": ("[allocated_value]", "The values in it."),
    "offset": ("integer", "Where in the allocation it begins."),
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
    "failure": ("text", "What the given module showed."),
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
    # Graphs.
    "around": ("place", "The instruction that it is around; null for a whole computation."),
    "distance": ("integer", "How many steps from it; null for a whole computation."),
    "edge_count": ("integer", "How many edges there are."),
    "files": ("[text]", "The files that were written."),
    "coloured_by": ("text", "What instructions are coloured by; null without --colour and --values."),
    "coloured": ("[coloured]", "The instructions that have a number."),
    "amount": ("number", "Its number: an error, seconds, bytes, or 0 as before, 1 wrong and 2 to blame."),
    "is_marked": ("flag", "Whether it is one of those that matter most."),
    "dot": ("text", "The graph in Graphviz's language; null where files were written."),
    # Shadows.
    "instruction_errors": ("[instruction_error]", "The errors of all instructions, each in its worst run."),
    "outputs": ("[output_error]", "The leaves of the result, for each group of devices that hold the same."),
    "is_more_than_rounding": ("flag", "Whether an output has lost more than a few units of roundoff."),
    "losses": ("[loss]", "Where the errors of the outputs come from, the largest share first."),
    "decisions": ("[decision]", "Where the shadows would have decided otherwise."),
    "untold": ("[untold]", "What cannot be computed in f64, so that its results count as exact."),
    "sample_count": ("integer", "How many runs were made with random rounding."),
    "relative_rms_error": ("number", "The root of the sum of squared errors, relative to that of the exact values."),
    "digits": ("number", "Significant decimal digits of the median element; null where there is nothing to tell."),
    "worst_digits": ("number", "Those of the worst element."),
    "worst_index": ("[integer]", "Where the worst element is."),
    "worst_value": ("number", "What the worst element is."),
    "worst_exact": ("number", "What it would be without rounding."),
    "lost_count": ("integer", "How many elements are infinite or NaN and should not be."),
    "sampled": ("sampled_digits", "What random rounding says of it; null without it."),
    "low_digits": ("number", "The lower end of the 95 % confidence interval of the median element's digits."),
    "high_digits": ("number", "The upper end of the 95 % confidence interval of the median element's digits."),
    "agreed_digits": ("number", "The digits on which every run agreed, of the median element."),
    "agreeing_share": ("number", "The share of all runs that agree so far at least, with 95 % confidence."),
    "share": ("number", "The share of the error of the outputs that comes from there."),
    "lost_share": ("number", "The share of the outputs' elements that are infinite or NaN and should not be."),
    "inherited_error": ("number", "What is inherited, relative to the exact result, in the worst run."),
    "added_error": ("number", "What the instruction adds itself, relative to the exact result, in the worst run."),
    "affected_count": ("integer", "How many elements show the kind of loss, of those that were looked at."),
    "output_numbers": ("[integer]", "The outputs whose error it is part of, the largest part first."),
    "decision_count": ("integer", "How many elements would be others."),
    "follows_size": ("flag", "Whether it encodes the size for certain; else it was guessed, or left as it is."),
    # Errors.
    "error": ("error_details", "What is wrong."),
    "line": ("integer", "The line of the file, from 1."),
    "column": ("integer", "The column of the line, from 1."),
}  # fmt: skip
"""Each key, with its type and its meaning. `[…]` are lists, `{…}` objects with any keys; a name is that of a record."""

_COMPARISON = "verdict agrees leaves"
_INSTRUCTION_RUN = "path instruction computation device"
_NAN_EVENT = (
    "kind reason path instruction computation opcode iteration? devices hlo op_name? source bad_count element_count"
)
_DIFF = (
    "before_module after_module verdict findings comparison matches value_count matched_value_count matched_share "
    "picture notes"
)
_RUN = "file module device_count seed numerics"
_GOLDEN = "module module_hash seed numerics"

RECORDS: Mapping[str, str] = {
    "run": f"{_RUN} instruction_count computation_count inputs result against? comparison? printed seconds "
    "warm_seconds? peak_bytes device_peak_bytes",
    "trace": f"{_RUN} folder select statistics_only is_complete event_count instruction_count value_bytes remarkable",
    "nan": f"{_RUN} found finding? later discarded nan_inputs nan_from_inputs event_count",
    "shadow": f"{_RUN} is_more_than_rounding outputs losses decisions untold instruction_errors event_count "
    "sample_count",
    "explain": f"{_RUN} expected_file explained_verdict best alike untold_instructions undecided trials reference "
    "leaves run_count unexplained_instructions checked_instruction_count is_complete",
    "extract": f"{_RUN} folder path iteration? instruction_count parameters hlo source inputs result has_same_bits "
    "differing",
    "compare": f"actual_file expected_file module? numerics {_COMPARISON}",
    "diff": f"before_file after_file seed numerics_before numerics_after {_DIFF} extraction?",
    "diff-folders": "before_file after_file? seed numerics_before numerics_after verdict modules notes",
    "golden-record": f"file folder {_GOLDEN}",
    "golden-check": "checks",
    "info": "file module device_count instruction_count computation_count replica_count num_partitions is_scheduled "
    "entry parameters parameter_bytes result_shape opcode_counts custom_call_counts element_type_counts contractions "
    "flops loop_count loops_without_trip_count constant_count elided_constant_count unsupported notes computations?",
    "info-arrays": "file arrays",
    "info-assignment": "file allocation_count? value_count? allocated_bytes?",
    "stepping": f"{_RUN} stops run_state printed_lines",
    "plan": "file module numerics computation peak_bytes functions",
    "memory": "file module is_scheduled target peak peak_by_color parameter_bytes output_bytes estimate? sequence "
    "values assignment?",
    "precision": f"{_RUN} output? step_count carried carried_reason? search_share input_count held_back_count "
    "rejection_count trial_count seconds work_flops narrowed_flops contraction_flops narrowed_contraction_flops "
    "moved_bytes narrowed_bytes held_outputs narrowing_verdicts",
    "shrink": "file output? module device_count device_count_before device_axes argument_bytes_before "
    "argument_bytes peak_bytes? total_flops_before total_flops is_proven size_changes kept_sizes size_constants",
    "minify": f"{_RUN} folder? failure given_instruction_count instruction_count largest_dimension "
    "minified_device_count trial_count accepted_count check_outcomes total_seconds is_complete is_confirmed hlo_text "
    "failing_command",
    "graph": "file module computation around? distance? instruction_count edge_count files coloured_by? coloured dot?",
    "triage": "folder other_folder? output_folder? case_count outcome_counts cause_groups triaged_modules "
    "total_seconds is_complete",
    "ops": "opcodes",
    "error": "error",
    "place": "computation instruction",
    "coloured": "computation instruction amount is_marked",
    "carried": "label parameter_label",
    "held_output": "label relative_tolerance search_deviation held_back_deviation?",
    "deviation": "label index input_number step_number device expected actual relative_error",
    "narrowing_verdict": "computation instruction opcode kind element_type narrow_type? standing reason alone? "
    "run_count work_flops hlo op_name? source",
    "cause_group": "group_number triage_outcome cause blamed_opcode? blamed_opcode_counts blamed_element_types "
    "shape_class? difference_kind cause_policy? member_names representative minified?",
    "minified_module": "module_name minified_folder? reason failure given_instruction_count instruction_count "
    "largest_dimension is_complete is_confirmed hlo_text failing_command total_seconds",
    "triaged_module": "module_name case_kind files against triage_outcome reason difference_kind different_outputs "
    "blamed_instruction? explained_by? to_blame? instruction_count notes is_cut is_reused total_seconds",
    "different_output": "label actual_shape expected_shape verdict element_count mismatch_count max_absolute_error? "
    "max_relative_error? max_ulps? nan_difference_count infinity_difference_count",
    "blamed_instruction": "opcode blamed_element_types shape shape_class instruction computation path hlo op_name? "
    "source right_hlo? is_certain reason",
    "policy_found": "policy policy_words alike_policies bits_explained equal_share explains_all",
    "device_axis": "size new_size stride",
    "check_outcome": "ended_as ended_count",
    "size_change": "size new_size array_count parameter_dimensions operations",
    "kept_size": "size array_count reason computation instruction",
    "size_constant": "computation instruction number_before number_after size follows_size",
    "leaf": "label shape index bytes minimum? maximum? mean? standard_deviation? nan_count infinity_count hash",
    "literal": "label literal",
    "stop": "reason path instruction computation iteration? devices hlo stop_values failure_text?",
    "timing": "iteration_count shortest median longest",
    "event": "path devices value",
    "parameter": "number name shape bytes",
    "contraction": "kind instruction_count run_count flops bytes",
    "requirement": "kind name reason? instruction_count computation instruction",
    "called_computation": "computation calling_computation? calling_instruction? calling_opcode? instruction_count "
    "run_count flops parameter_bytes result_shape",
    "opcode": "opcode minimum_operands maximum_operands? role is_elementwise is_supported documentation element_types?",
    "comparison": _COMPARISON,
    "compared_leaf": "label verdict actual_shape expected_shape element_count note measured?",
    "measurement": "ulp_type unequal_count mismatch_count max_absolute_error? mean_absolute_error? "
    "max_relative_error? mean_relative_error? ulp_percentiles cosine? nans infinities unlike_zero_count mean_severity "
    "infinite_mismatch_count first worst error_map tolerance",
    "places": "both actual_only expected_only",
    "difference": "index actual expected absolute_error ulps severity",
    "error_map": "rows columns cells",
    "tolerance": "rtol atol ulp? is_given derivation factor check_error",
    "module_diff": _DIFF,
    "diff_finding": "blamed instead_of? comparison? is_certain reason region graph",
    "region_step": f"{_INSTRUCTION_RUN} hlo region_role operand_paths equal_to?",
    "extracted_pair": "folder before_path? after_path device_count instruction_count_before? instruction_count_after "
    "parameters extracted_verdict? notes",
    "instruction_run": _INSTRUCTION_RUN,
    "instruction": f"{_INSTRUCTION_RUN} hlo op_name? source",
    "match": "after before is_exact is_in_order",
    "module_steps": "module stage_count verdict to_blame? steps",
    "step": "step pass? pipeline? before_file after_file verdict reason diff?",
    "nan_event": _NAN_EVENT,
    "nan_finding": f"{_NAN_EVENT} value operands elements chain",
    "policy_trial": "policy instruction_names bits_explained remaining equal_share max_ulps mismatch_count? "
    "spread_ratio? is_explained? has_effect effect_share? effect_error?",
    "untold_choice": "name policy",
    "explained_instruction": "name opcode hlo source run_count is_complete explained_verdict best alike",
    "bad_element": "index element operand_elements?",
    "link": "path hlo source minimum maximum",
    "output_error": "label index devices shape relative_rms_error digits? worst_digits? worst_index? worst_value? "
    "worst_exact? lost_count sampled?",
    "loss": "share lost_share kind path iteration? devices instruction computation opcode hlo source op_name? "
    "inherited_error added_error run_count affected_count output_numbers sampled?",
    "instruction_error": "computation instruction inherited_error added_error",
    "decision": "decision_count element_count instruction computation opcode hlo source",
    "untold": "instruction computation opcode reason",
    "sampled_digits": "digits low_digits high_digits worst_digits agreed_digits agreeing_share sample_count",
    "golden_check": "folder outcome message seconds golden? comparison?",
    "golden": f"{_GOLDEN} replica_count num_partitions inputs_per_device inputs_source expected_source elided unknown "
    "atol? rtol? ulp? versions",
    "peak": "bytes time instruction?",
    "run_estimate": "bytes instruction?",
    "live_value": "instruction computation index shape bytes color buffer is_phi live xla_live?",
    "assignment": "agrees allocated_bytes? allocated_bytes_by_color in_use_at_most schedule_differs_at? "
    "live_range_count agreeing_live_range_count size_count peak_time? listed_peak_bytes? differences padded "
    "allocations",
    "memory_difference": "what label xla? ours?",
    "allocation": "number kind color bytes allocated_values in_use_at_most",
    "allocated_value": "instruction index offset bytes",
    "error_details": "kind message file? line? column?",
}
"""Each record with its keys; those that end in `?` may be null. The first ones, up to `error`, are printed."""


def printed_records() -> Sequence[str]:
    """The names of the records that commands print; the others are parts of them."""
    names = list(RECORDS)
    return names[: names.index("error") + 1]


def identified(name: str, record: Mapping[str, object], warnings: Sequence[str]) -> dict[str, object]:
    """A record as it is printed: with the name and the version of its schema in front, and with what was warned of."""
    return {"schema": f"hloexec.{name}", "version": VERSION, **record, "warnings": list(warnings)}


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a record that is printed, with those of its parts."""
    schema = _object_schema(RECORDS[name])
    schema["properties"] = {
        "schema": {"const": f"hloexec.{name}", "description": KEYS["schema"][1]},
        "version": {"const": VERSION, "description": KEYS["version"][1]},
        **schema["properties"],
        "warnings": {**_type_schema(KEYS["warnings"][0]), "description": KEYS["warnings"][1]},
    }
    schema["required"] = list(schema["properties"])
    parts = {part: _object_schema(RECORDS[part]) for part in _parts(name, {})}
    parts["element"] = {"anyOf": [_WORD["number"], _WORD["flag"], _COMPLEX]}
    return {"$schema": _DIALECT, "title": f"hloexec.{name}", **schema, "$defs": parts}


_COMPLEX = {"type": "array", "prefixItems": [_WORD["number"]] * 2, "items": False, "minItems": 2}
"""A complex number is the list of its real and its imaginary part."""


def _object_schema(keys: str) -> dict[str, Any]:
    properties = {}
    for word in keys.split():
        key = word.removesuffix("?")
        kind, meaning = KEYS[key]
        schema = _type_schema(kind)
        if key != word:
            schema = {"anyOf": [schema, {"type": "null"}]}
        properties[key] = {**schema, "description": meaning}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _type_schema(kind: str) -> dict[str, Any]:
    if kind.startswith("["):
        return {"type": "array", "items": _type_schema(kind[1:-1])}
    if kind.startswith("{"):
        return {"type": "object", "additionalProperties": _type_schema(kind[1:-1])}
    if "|" in kind:
        return {"enum": kind.split("|")}
    return dict(_WORD.get(kind, {"$ref": f"#/$defs/{kind}"}))


def _parts(name: str, found: dict[str, None]) -> Iterator[str]:
    """The records that a record is made of, in the order in which its keys name them."""
    for word in RECORDS[name].split():
        part = re.sub(r"[^\w|]", "", KEYS[word.removesuffix("?")][0])
        if part in RECORDS and part not in found:
            found[part] = None
            yield part
            yield from _parts(part, found)
