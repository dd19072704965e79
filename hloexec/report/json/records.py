"""The records that `--json` prints, and those that they are made of, each with its keys.

Every key of a record is always there, and null where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_COMPARISON = "verdict agrees leaves"
_INSTRUCTION_RUN = "path instruction computation device"
_NAN_EVENT = (
    "kind reason path instruction computation opcode iteration? devices hlo op_name? source bad_count "
    "bad_nan_count element_count"
)
_DIFF = (
    "before_module after_module verdict largest_difference? findings comparison matches value_count "
    "matched_value_count matched_share picture notes"
)
_RUN = "file module device_count seed numerics"
_GOLDEN = "module module_hash seed numerics"

RECORDS: Mapping[str, str] = {
    "run": f"{_RUN} instruction_count computation_count inputs result against? comparison? printed seconds "
    "warm_seconds? peak_bytes device_peak_bytes",
    "trace": f"{_RUN} folder select statistics_only is_complete event_count instruction_count value_bytes remarkable",
    "nan": f"{_RUN} found finding? later discarded nan_inputs nan_input_elements nan_from_inputs made_integers "
    "compared nan_constants event_count",
    "shadow": f"{_RUN} is_more_than_rounding outputs losses decisions untold instruction_errors event_count "
    "sample_count share_run_count estimates_reason estimated_count",
    "explain": f"{_RUN} expected_file explained_verdict left_open best alike untold_instructions undecided trials "
    "reference leaves run_count unexplained_instructions checked_instruction_count is_complete",
    "extract": f"{_RUN} folder path iteration? instruction_count parameters hlo source inputs result has_same_bits "
    "differing",
    "compare": f"actual_file expected_file module? numerics {_COMPARISON}",
    "diff": f"before_file after_file seed numerics_before numerics_after {_DIFF} extraction?",
    "diff-folders": "before_file after_file? seed numerics_before numerics_after verdict modules notes",
    "golden-record": f"file folder {_GOLDEN} disagreement?",
    "golden-check": "checks is_complete advice",
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
    "minify": f"{_RUN} folder? failure notes given_instruction_count instruction_count largest_dimension "
    "minified_device_count trial_count accepted_count check_outcomes total_seconds is_complete is_confirmed hlo_text "
    "failing_command",
    "graph": "file module computation around? distance? instruction_count edge_count files coloured_by? coloured dot?",
    "triage": "folder other_folder? output_folder? distribution case_count outcome_counts cause_groups triaged_modules "
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
    "requirement": "kind name reason? instruction_count computation instruction is_conditional",
    "called_computation": "computation calling_computation? calling_instruction? calling_opcode? instruction_count "
    "run_count flops parameter_bytes result_shape",
    "opcode": "opcode minimum_operands maximum_operands? role is_elementwise is_supported documentation element_types?",
    "comparison": _COMPARISON,
    "compared_leaf": "label verdict actual_shape expected_shape element_count note undecided_elements? measured?",
    "undecided_elements": "element_count first_indices left_open_by reason",
    "measurement": "ulp_type unequal_count mismatch_count max_absolute_error? mean_absolute_error? "
    "max_relative_error? mean_relative_error? ulp_percentiles cosine? nans infinities unlike_zero_count mean_severity "
    "infinite_mismatch_count first worst error_map tolerance",
    "places": "both actual_only expected_only",
    "difference": "index actual expected absolute_error ulps severity",
    "error_map": "rows columns cells",
    "tolerance": "rtol atol ulp? is_given derivation factor sample_count check_error",
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
    "nan_input": "parameter_name tuple_index devices index bad_count element_count",
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
    "inherited_error added_error alone_error? is_measured run_count affected_count output_numbers sampled?",
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
