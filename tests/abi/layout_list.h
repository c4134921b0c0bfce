/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every struct of the ABI and every field, in order: S(struct) begins one, F(struct, field) is one field of it.
 *
 * layout_test checks that the list is complete: all structs of the headers are in it, and the fields of each tile it
 * without a gap.
 */
/* clang-format off */
#define KVP_ABI_LAYOUT(S, F) \
  S(kvp_dtype) \
    F(kvp_dtype, code) F(kvp_dtype, bits) F(kvp_dtype, lanes) \
  S(kvp_tensor) \
    F(kvp_tensor, data) F(kvp_tensor, device_type) F(kvp_tensor, device_id) F(kvp_tensor, ndim) \
    F(kvp_tensor, dtype_code) F(kvp_tensor, dtype_bits) F(kvp_tensor, dtype_lanes) F(kvp_tensor, flags) \
    F(kvp_tensor, reserved) F(kvp_tensor, shape) F(kvp_tensor, strides) \
  S(kvp_error) \
    F(kvp_error, struct_size) F(kvp_error, code) F(kvp_error, native_code) F(kvp_error, buf) \
    F(kvp_error, cap) F(kvp_error, len) \
  S(kvp_call) \
    F(kvp_call, struct_size) F(kvp_call, device_type) F(kvp_call, device_id) F(kvp_call, stream) \
    F(kvp_call, flags) F(kvp_call, reserved) \
  S(kvp_option) \
    F(kvp_option, key) F(kvp_option, text) F(kvp_option, integer) F(kvp_option, number) \
    F(kvp_option, type) F(kvp_option, reserved) \
  S(kvp_memory) \
    F(kvp_memory, struct_size) F(kvp_memory, used) F(kvp_memory, reserved) F(kvp_memory, peak) \
    F(kvp_memory, unquantized) \
  S(kvp_counter) \
    F(kvp_counter, name) F(kvp_counter, value) \
  S(kvp_mem) \
    F(kvp_mem, struct_size) F(kvp_mem, owner) F(kvp_mem, bytes) F(kvp_mem, align) F(kvp_mem, tier) \
    F(kvp_mem, purpose) F(kvp_mem, device_type) F(kvp_mem, device_id) F(kvp_mem, stream) \
  S(kvp_host) \
    F(kvp_host, struct_size) F(kvp_host, abi_major) F(kvp_host, abi_minor) F(kvp_host, ctx) \
    F(kvp_host, name) F(kvp_host, version) F(kvp_host, log) F(kvp_host, mem_alloc) F(kvp_host, mem_free) \
    F(kvp_host, get_extension) \
  S(kvp_host_parallel) \
    F(kvp_host_parallel, struct_size) F(kvp_host_parallel, ctx) F(kvp_host_parallel, workers) \
    F(kvp_host_parallel, parallel_for) \
  S(kvp_descriptor) \
    F(kvp_descriptor, struct_size) F(kvp_descriptor, id) F(kvp_descriptor, iface_id) \
    F(kvp_descriptor, iface) F(kvp_descriptor, summary) F(kvp_descriptor, options_schema) \
  S(kvp_plugin) \
    F(kvp_plugin, struct_size) F(kvp_plugin, abi_major) F(kvp_plugin, abi_minor) \
    F(kvp_plugin, min_host_minor) F(kvp_plugin, reserved) F(kvp_plugin, id) F(kvp_plugin, version) \
    F(kvp_plugin, vendor) F(kvp_plugin, n_descriptors) F(kvp_plugin, reserved1) \
    F(kvp_plugin, descriptor) F(kvp_plugin, quiesce) \
  S(kvp_state_slot) \
    F(kvp_state_slot, struct_size) F(kvp_state_slot, kind) F(kvp_state_slot, ndim) \
    F(kvp_state_slot, shape) F(kvp_state_slot, dtype) F(kvp_state_slot, flags) \
  S(kvp_layer) \
    F(kvp_layer, struct_size) F(kvp_layer, kind) F(kvp_layer, flags) F(kvp_layer, q_heads) \
    F(kvp_layer, kv_heads) F(kvp_layer, key_dim) F(kvp_layer, value_dim) F(kvp_layer, window) \
    F(kvp_layer, slots) F(kvp_layer, n_slots) F(kvp_layer, slot_stride) F(kvp_layer, shared_with) \
    F(kvp_layer, model_layer) F(kvp_layer, index_dim) F(kvp_layer, reserved) \
  S(kvp_qspec) \
    F(kvp_qspec, struct_size) F(kvp_qspec, format) F(kvp_qspec, n_levels) F(kvp_qspec, storage_bits) \
    F(kvp_qspec, group_dim) F(kvp_qspec, group_size) F(kvp_qspec, scale_dtype) F(kvp_qspec, zero_dtype) \
    F(kvp_qspec, out_dtype) F(kvp_qspec, flags) \
  S(kvp_qcreate) \
    F(kvp_qcreate, struct_size) F(kvp_qcreate, role) F(kvp_qcreate, head_dim) F(kvp_qcreate, spec) \
    F(kvp_qcreate, options) F(kvp_qcreate, n_options) F(kvp_qcreate, dtype) F(kvp_qcreate, device_type) \
    F(kvp_qcreate, device_id) F(kvp_qcreate, reserved) \
  S(kvp_qpart) \
    F(kvp_qpart, role) F(kvp_qpart, flags) F(kvp_qpart, t) \
  S(kvp_qplan) \
    F(kvp_qplan, struct_size) F(kvp_qplan, token_block) F(kvp_qplan, workspace_bytes) \
    F(kvp_qplan, bits_per_element) F(kvp_qplan, n_parts) F(kvp_qplan, reserved) F(kvp_qplan, parts) \
  S(kvp_quantizer_iface) \
    F(kvp_quantizer_iface, struct_size) F(kvp_quantizer_iface, spec_count) \
    F(kvp_quantizer_iface, spec_range) F(kvp_quantizer_iface, create) F(kvp_quantizer_iface, destroy) \
    F(kvp_quantizer_iface, describe) F(kvp_quantizer_iface, plan) F(kvp_quantizer_iface, quantize) \
    F(kvp_quantizer_iface, dequantize) F(kvp_quantizer_iface, error_bound) \
    F(kvp_quantizer_iface, get_extension) \
  S(kvp_qhandle) \
    F(kvp_qhandle, struct_size) F(kvp_qhandle, iface) F(kvp_qhandle, self) F(kvp_qhandle, id) \
  S(kvp_cache_create) \
    F(kvp_cache_create, struct_size) F(kvp_cache_create, layers) F(kvp_cache_create, n_layers) \
    F(kvp_cache_create, layer_stride) F(kvp_cache_create, batch) F(kvp_cache_create, tokens) \
    F(kvp_cache_create, rollback) F(kvp_cache_create, device_type) F(kvp_cache_create, device_id) \
    F(kvp_cache_create, dtype) F(kvp_cache_create, flags) F(kvp_cache_create, options) \
    F(kvp_cache_create, n_options) F(kvp_cache_create, quantizer_key) \
    F(kvp_cache_create, quantizer_value) F(kvp_cache_create, owner) \
  S(kvp_cache_info) \
    F(kvp_cache_info, struct_size) F(kvp_cache_info, flags) F(kvp_cache_info, reserved) \
    F(kvp_cache_info, max_rollback) F(kvp_cache_info, token_block) F(kvp_cache_info, tolerance) \
  S(kvp_lengths) \
    F(kvp_lengths, struct_size) F(kvp_lengths, seen) F(kvp_lengths, max) F(kvp_lengths, kv_len) \
    F(kvp_lengths, kv_offset) F(kvp_lengths, row_seen) F(kvp_lengths, row_pad) F(kvp_lengths, n_rows) \
  S(kvp_update_args) \
    F(kvp_update_args, struct_size) F(kvp_update_args, layer) F(kvp_update_args, flags) \
    F(kvp_update_args, k) F(kvp_update_args, v) F(kvp_update_args, pad) F(kvp_update_args, count) \
    F(kvp_update_args, positions) \
  S(kvp_cache_iface) \
    F(kvp_cache_iface, struct_size) F(kvp_cache_iface, probe) F(kvp_cache_iface, plan) \
    F(kvp_cache_iface, create) F(kvp_cache_iface, destroy) F(kvp_cache_iface, lengths) \
    F(kvp_cache_iface, update) F(kvp_cache_iface, reset) F(kvp_cache_iface, gather) \
    F(kvp_cache_iface, crop) F(kvp_cache_iface, set_rollback) F(kvp_cache_iface, clone) \
    F(kvp_cache_iface, reserve) F(kvp_cache_iface, memory) F(kvp_cache_iface, counters) \
    F(kvp_cache_iface, get_extension) \
  S(kvp_attend_desc) \
    F(kvp_attend_desc, struct_size) F(kvp_attend_desc, layer) F(kvp_attend_desc, flags) \
    F(kvp_attend_desc, max_batch) F(kvp_attend_desc, max_query) F(kvp_attend_desc, q_dtype) \
    F(kvp_attend_desc, out_dtype) F(kvp_attend_desc, scale) F(kvp_attend_desc, softcap) \
    F(kvp_attend_desc, window) F(kvp_attend_desc, chunk) \
  S(kvp_attend_args) \
    F(kvp_attend_args, struct_size) F(kvp_attend_args, layer) F(kvp_attend_args, flags) \
    F(kvp_attend_args, q) F(kvp_attend_args, k) F(kvp_attend_args, v) F(kvp_attend_args, pad) \
    F(kvp_attend_args, count) F(kvp_attend_args, positions) F(kvp_attend_args, bias) \
    F(kvp_attend_args, sinks) F(kvp_attend_args, q_offset) F(kvp_attend_args, window) \
    F(kvp_attend_args, chunk) F(kvp_attend_args, scale) F(kvp_attend_args, softcap) \
  S(kvp_attend_ext) \
    F(kvp_attend_ext, struct_size) F(kvp_attend_ext, probe) F(kvp_attend_ext, attend) \
  S(kvp_state_ext) \
    F(kvp_state_ext, struct_size) F(kvp_state_ext, conv_append) F(kvp_state_ext, state_view) \
    F(kvp_state_ext, commit) F(kvp_state_ext, has_previous) \
  S(kvp_index_ext) \
    F(kvp_index_ext, struct_size) F(kvp_index_ext, append) \
  S(kvp_capture_ext) \
    F(kvp_capture_ext, struct_size) F(kvp_capture_ext, bind) F(kvp_capture_ext, advance) \
    F(kvp_capture_ext, unbind) \
  S(kvp_snap_item) \
    F(kvp_snap_item, struct_size) F(kvp_snap_item, role) F(kvp_snap_item, layer) F(kvp_snap_item, slot) \
    F(kvp_snap_item, flags) F(kvp_snap_item, first_token) F(kvp_snap_item, name) F(kvp_snap_item, t) \
  S(kvp_snapshot_ext) \
    F(kvp_snapshot_ext, struct_size) F(kvp_snapshot_ext, count) F(kvp_snapshot_ext, item) \
    F(kvp_snapshot_ext, restore) \
  S(kvp_offload_ext) \
    F(kvp_offload_ext, struct_size) F(kvp_offload_ext, begin_step) F(kvp_offload_ext, prefetch) \
    F(kvp_offload_ext, end_step) \
  S(kvp_qattend_desc) \
    F(kvp_qattend_desc, struct_size) F(kvp_qattend_desc, q_heads) F(kvp_qattend_desc, kv_heads) \
    F(kvp_qattend_desc, key_dim) F(kvp_qattend_desc, value_dim) F(kvp_qattend_desc, max_batch) \
    F(kvp_qattend_desc, max_query) F(kvp_qattend_desc, window) F(kvp_qattend_desc, chunk) \
    F(kvp_qattend_desc, q_dtype) F(kvp_qattend_desc, softcap) F(kvp_qattend_desc, device_type) \
    F(kvp_qattend_desc, device_id) \
  S(kvp_qpage) \
    F(kvp_qpage, row) F(kvp_qpage, position) F(kvp_qpage, count) F(kvp_qpage, parts) \
  S(kvp_qattend_args) \
    F(kvp_qattend_args, struct_size) F(kvp_qattend_args, q) F(kvp_qattend_args, k_parts) \
    F(kvp_qattend_args, v_parts) F(kvp_qattend_args, n_k_parts) F(kvp_qattend_args, n_v_parts) \
    F(kvp_qattend_args, pages) F(kvp_qattend_args, n_pages) F(kvp_qattend_args, q_position) \
    F(kvp_qattend_args, workspace) F(kvp_qattend_args, window) F(kvp_qattend_args, chunk) \
    F(kvp_qattend_args, scale) F(kvp_qattend_args, softcap) F(kvp_qattend_args, device_pages) \
  S(kvp_qattend_ext) \
    F(kvp_qattend_ext, struct_size) F(kvp_qattend_ext, probe) F(kvp_qattend_ext, attend) \
  S(kvp_dltensor) \
    F(kvp_dltensor, data) F(kvp_dltensor, device_type) F(kvp_dltensor, device_id) F(kvp_dltensor, ndim) \
    F(kvp_dltensor, dtype) F(kvp_dltensor, shape) F(kvp_dltensor, strides) F(kvp_dltensor, byte_offset)
