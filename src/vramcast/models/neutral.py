"""Fields of a config.json that change no parameter's shape in any model type we know.

Checked by building transformers' classes with each of them changed (CONTRIBUTING.md, "Add a model type"). What a
type ignores though it matters to others is in `IGNORED`.
"""

from __future__ import annotations

import re

_ENDINGS = re.compile(
    r"(_token_id|_token_ids|_token_index|dropout|_pdrop|dropout_prob|_dropout_rate|_eps|_epsilon|_coef|_coeff|_init_std"
    r"|rope_theta|rope_scaling|_rope_freq|_softcapping|_multiplier|_multipliers|_scaling_factor|jitter_noise"
    r"|_impl|_implementation|_cache_dtype|ssm_dtype|_attention_sink_scale|_range|_std|_in_fp32|_tokens_per_image"
    r"|_seq_length|_grid_pinpoints|_vocab_offset)$"
)
_BEGINNINGS = re.compile(
    r"(rope_|rotary_|mrope_|sparse_|mtp_|summary_|output_|blocksparse_|compress_rope_|swiglu_|gegelu_|time_step_)"
)
_TRAINING = re.compile(
    r"(^|_)(loss|losses|init|initializer|initialization|dropout|droprate|drop_rate|drop_path|droppath|layerdrop"
    r"|label_smoothing|noise|gradient_checkpointing|aux_weight|pdrop|warmup|bias_update_rate|bias_update_speed)(_|$)"
)
"""what only training reads: weights of losses, initialisers, dropouts"""

NEUTRAL = frozenset(
    """
    _name_or_path _attn_implementation architectures auto_map bos_token_id chunk_size_feed_forward custom_pipelines
    eos_token_id finetuning_task gradient_checkpointing id2label is_composition is_decoder label2id
    label_names model_type num_labels problem_type pruned_heads return_dict sep_token_id task_specific_params
    tokenizer_class torch_dtype dtype torchscript transformers_version transformers.js_config unsloth_fixed
    unsloth_version use_cache use_return_dict remove_invalid_values repetition_penalty
    begin_suppress_tokens suppress_tokens generation_config for_llm_compressor language_model_only
    quantization_config compression_config quant_method

    activation_function hidden_act hidden_activation mlp_hidden_act mamba_hidden_act projector_hidden_act
    activation_func activation_sparsity_pattern attention_softmax_in_fp32 scale_attention_softmax_in_fp32
    scale_attn_weights
    scale_attn_by_inverse_layer_idx reorder_and_upcast_attn residual_in_fp32 rescale_prenorm_residual
    attention_value_scale attention_multiplier query_pre_attn_scalar attn_temperature_tuning attn_scale floor_scale
    logit_scale scale_depth scale_emb dim_model_base mup_use_scaling final_logit_softcapping mup_width_multiplier

    max_position_embeddings model_max_length max_seq_len max_seq_length seq_length n_ctx n_positions
    original_max_position_embeddings initial_context_length max_tokenizer_truncation pad_sequence_to_multiple_of_64
    partial_rotary_factor alibi alibi_bias_max position_embedding_type rope_interleave no_rope_layers
    no_rope_layer_interval nope_layer_interval use_dynamic_ntk use_logn_attn is_causal

    sliding_window sliding_window_size sliding_window_pattern use_sliding_window max_window_layers window_size
    attention_chunk_size attention_types attn_type_list full_attn_mod fullatt_block_indexes cache_implementation
    dense_attention_every_n_layers use_bidirectional_attention use_flash_attn chunk_size mamba_chunk_size
    use_mamba_kernels mamba_norm_before_gate num_logits_to_keep linear_a_log_max linear_a_log_min
    linear_allow_neg_eigval
    linear_dt_init_floor linear_dt_max linear_dt_min index_topk indexer_rope_interleave index_share_for_mtp_iteration

    aux_loss_alpha router_aux_loss_coef router_z_loss_coef seq_aux scoring_func topk_method topk_group n_group
    num_expert_group norm_topk_prob moe_renormalize routed_scaling_factor router_scaling_factor moe_router_dtype
    moe_shared_expert_overlap moe_router_activation_func use_grouped_topk use_routing_bias use_expert_bias
    enable_moe_fp32_combine expert_dtype ep_size pretraining_tp experts_per_token num_hash_layers hc_sinkhorn_iters

    num_nextn_predict_layers num_mtp_layers num_mtp_modules use_mtp num_reward_heads

    activation apply_residual_connection_post_layernorm attention_context_left attention_context_right clip_qkv
    attention_invalid_logits_value attention_logit_cap block_size embedding_fraction index_block_size index_local_blocks
    index_topk_blocks layerdrop learned_pos_emb logits_scaling mlp_alpha_factor mlp_beta_factor full_attn_alpha_factor
    full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor moe_norm_min residual_weight slow_but_exact
    use_associative_scan use_mambapy z_loss_coefficient keys_to_ignore_at_inference max_sequence_length rope_theta
    _flash_attn_2_enabled _attn_implementation_autoset attn_implementation output_attentions

    image_seq_length spatial_patch_size tokens_per_second interpolate_factor do_pooling pooling_kernel_size
    vision_feature_select_strategy vision_segment_max_frames process_image_mode image_grid_pinpoints
    image_token_compression_method use_clipped_linears standardize default_output_length gradient_clipping
    projector_dropout vocab_offset num_classes altup_active_idx altup_coef_clip altup_correct_scale
    use_unified_vision_chunk video_attn_type video_placeholder output_gate_type
    """.split()
)


ONLY = {"add_cross_attention": False, "is_encoder_decoder": False}
"""field → the only value it may have"""

_TOWER = "num_attention_heads num_heads attention_heads projection_dim vocab_size initializer_factor"
_LATENT = "num_key_value_heads moe_layer_freq=1 qk_head_dim head_dim"
IGNORED = {
    "apertus": "qk_norm=true",
    "deepseek": "moe_layer_freq=1",
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": f"{_LATENT} mlp_bias=false",
    "deepseek_v4": "attention_bias=false num_key_value_heads=1 qk_rope_head_dim n_shared_experts=1",
    "gemma3": _TOWER,
    "gemma3n": """conf_attention_chunk_size conf_attention_context_left conf_attention_context_right
        conf_attention_logit_cap conf_reduction_factor conf_residual_weight""",
    "gemma4": "attention_bias=false global_head_dim",
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": f"{_LATENT} mlp_bias=false",
    "gemma3_text": "_sliding_window_pattern",
    "gpt_bigcode": "num_key_value_heads",
    "gpt_neo": "attention_layers",
    "gpt_neox": "use_parallel_residual",
    "hunyuan_v1_moe": "moe_intermediate_size num_shared_expert=1",
    "kimi_k2": _LATENT,
    "kimi_k25": f"""{_LATENT} merge_type mm_hidden_size mm_projector_type pos_emb_type text_hidden_size
        vt_num_attention_heads""",
    "kimi_linear": f"{_LATENT} tie_word_embeddings=false",
    "llama4": f"""{_TOWER} multi_modal_projector_bias=false tie_word_embeddings=false use_qk_norm
        vision_feature_layer intermediate_size_mlp""",
    "llava": _TOWER,
    "minicpm3": "num_key_value_heads head_dim qk_head_dim",
    "minimax_m2": "use_qk_norm=true qk_norm_type=per_layer shared_intermediate_size=0",
    "minimax_m3_vl": f"""{_TOWER} multimodal_projector_bias=true img_token_compression_config vision_feature_layer
        image_size use_gemma_norm attention_output_gate=false use_qk_norm=true n_shared_experts=1
        qk_norm_type=per_head""",
    "mistral3": "image_size vocab_size",
    "mllama": f"{_TOWER} tie_word_embeddings",
    "mpt": "no_bias=true expansion_ratio=4 norm_type=low_precision_layernorm attn_type=multihead_attention",
    "nemotron_h": "tie_word_embeddings=false expand intermediate_size mamba_proj_bias=false n_shared_experts=1",
    "phi3": "attention_bias=false lm_head_bias=false mlp_bias=false",
    "phi3small": "attention_bias=false",
    "qwen2_5_vl": "num_heads",
    "qwen2_moe": "intermediate_size",
    "qwen2_vl": "num_heads",
    "qwen3_5": "num_heads attn_output_gate=true mlp_only_layers",
    "qwen3_5_moe": "num_heads attn_output_gate=true",
    "qwen3_moe": "intermediate_size qkv_bias=false shared_expert_intermediate_size=0 use_qk_norm=true",
    "qwen3_next": "intermediate_size",
    "qwen3_vl": "num_heads",
    "qwen3_vl_moe": "intermediate_size num_heads",
    "starcoder2": "mlp_type=default norm_type=layer_norm",
}
"""model type → fields that its class ignores, with the only value for which that is true"""


def is_neutral(model_type: str, field: str, value: object) -> bool:
    """Whether a field, with its value, leaves every shape alone."""
    if field in ONLY:
        return value in (None, ONLY[field])
    for entry in IGNORED.get(model_type, "").split():
        name, _, only = entry.partition("=")
        if name == field and (not only or str(value).lower() == only):
            return True
    known = (_ENDINGS.search(field), _BEGINNINGS.match(field), _TRAINING.search(field))
    return field in NEUTRAL or any(known)
