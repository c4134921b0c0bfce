// SPDX-License-Identifier: Apache-2.0
// The numbers and names of the contract, written out a second time: a constant that changes breaks every plugin.
#include <gtest/gtest.h>
#include <kvplug/abi.h>

#include <string>

namespace {

TEST(AbiConstants, Version) {
  EXPECT_EQ(KVP_ABI_MAJOR, 0);
  EXPECT_EQ(KVP_ABI_MINOR, 1);
  EXPECT_EQ(std::string(KVP_PLUGIN_ENTRY_NAME), "kvp_plugin_entry_v" + std::to_string(KVP_ABI_MAJOR));
  static_assert(std::is_same<decltype(&KVP_PLUGIN_ENTRY), kvp_plugin_entry_fn>::value,
                "the entry has its declared type");
}

TEST(AbiConstants, Status) {
  EXPECT_EQ(KVP_OK, 0);
  EXPECT_EQ(KVP_UNSUPPORTED, 10);
  EXPECT_EQ(KVP_INVALID_ARGUMENT, 11);
  EXPECT_EQ(KVP_INVALID_STATE, 12);
  EXPECT_EQ(KVP_CAPACITY, 13);
  EXPECT_EQ(KVP_CANCELLED, 14);
  EXPECT_EQ(KVP_OUT_OF_MEMORY, 20);
  EXPECT_EQ(KVP_IO, 21);
  EXPECT_EQ(KVP_CORRUPT, 22);
  EXPECT_EQ(KVP_DEVICE, 30);
  EXPECT_EQ(KVP_INTERNAL, 31);
  EXPECT_EQ(KVP_POISONED, 32);
  EXPECT_FALSE(KVP_IS_POISONING(29));
  EXPECT_TRUE(KVP_IS_POISONING(30));
}

TEST(AbiConstants, NamesOfInterfaces) {
  EXPECT_STREQ(KVP_IFACE_CACHE, "kvp.cache/1");
  EXPECT_STREQ(KVP_IFACE_QUANTIZER, "kvp.quantizer/1");
  EXPECT_STREQ(KVP_EXT_ATTEND, "kvp.attend/1");
  EXPECT_STREQ(KVP_EXT_STATE, "kvp.state/1");
  EXPECT_STREQ(KVP_EXT_INDEX, "kvp.index/1");
  EXPECT_STREQ(KVP_EXT_CAPTURE, "kvp.capture/1");
  EXPECT_STREQ(KVP_EXT_OFFLOAD, "kvp.offload/1");
  EXPECT_STREQ(KVP_EXT_SNAPSHOT, "kvp.snapshot/1");
  EXPECT_STREQ(KVP_EXT_QUANT_ATTEND, "kvp.quant-attend/1");
  EXPECT_STREQ(KVP_EXT_HOST_PARALLEL, "kvp.host.parallel/1");
}

TEST(AbiConstants, NumbersOfDlpack) {
  EXPECT_EQ(KVP_DEVICE_CPU, 1);
  EXPECT_EQ(KVP_DEVICE_CUDA, 2);
  EXPECT_EQ(KVP_DEVICE_CUDA_HOST, 3);
  EXPECT_EQ(KVP_DEVICE_METAL, 8);
  EXPECT_EQ(KVP_DEVICE_ROCM, 10);
  EXPECT_EQ(KVP_DEVICE_ROCM_HOST, 11);
  EXPECT_EQ(KVP_DEVICE_CUDA_MANAGED, 13);
  EXPECT_EQ(KVP_DEVICE_ONEAPI, 14);
  EXPECT_EQ(KVP_DTYPE_INT, 0);
  EXPECT_EQ(KVP_DTYPE_UINT, 1);
  EXPECT_EQ(KVP_DTYPE_FLOAT, 2);
  EXPECT_EQ(KVP_DTYPE_OPAQUE, 3);
  EXPECT_EQ(KVP_DTYPE_BFLOAT, 4);
  EXPECT_EQ(KVP_DTYPE_COMPLEX, 5);
  EXPECT_EQ(KVP_DTYPE_BOOL, 6);
  EXPECT_EQ(KVP_DTYPE_FLOAT8_E3M4, 7);
  EXPECT_EQ(KVP_DTYPE_FLOAT8_E4M3, 8);
  EXPECT_EQ(KVP_DTYPE_FLOAT8_E4M3B11FNUZ, 9);
  EXPECT_EQ(KVP_DTYPE_FLOAT8_E4M3FN, 10);
  EXPECT_EQ(KVP_DTYPE_FLOAT8_E4M3FNUZ, 11);
  EXPECT_EQ(KVP_DTYPE_FLOAT8_E5M2, 12);
  EXPECT_EQ(KVP_DTYPE_FLOAT8_E5M2FNUZ, 13);
  EXPECT_EQ(KVP_DTYPE_FLOAT8_E8M0FNU, 14);
  EXPECT_EQ(KVP_DTYPE_FLOAT6_E2M3FN, 15);
  EXPECT_EQ(KVP_DTYPE_FLOAT6_E3M2FN, 16);
  EXPECT_EQ(KVP_DTYPE_FLOAT4_E2M1FN, 17);
}

TEST(AbiConstants, Enumerations) {
  const int32_t layers[] = {KVP_LAYER_NONE,    KVP_LAYER_FULL,  KVP_LAYER_SLIDING,
                            KVP_LAYER_CHUNKED, KVP_LAYER_CROSS, KVP_LAYER_STATE};
  for (int32_t i = 0; i < 6; ++i) EXPECT_EQ(layers[i], i);
  const int32_t tiers[] = {KVP_TIER_DEVICE, KVP_TIER_PINNED, KVP_TIER_HOST, KVP_TIER_FILE, KVP_N_TIERS};
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(tiers[i], i);
  const int32_t purposes[] = {KVP_PURPOSE_KV,      KVP_PURPOSE_PACKED, KVP_PURPOSE_RESIDUAL,
                              KVP_PURPOSE_SCALES,  KVP_PURPOSE_STATE,  KVP_PURPOSE_ROLLBACK,
                              KVP_PURPOSE_SCRATCH, KVP_PURPOSE_OTHER,  KVP_N_PURPOSES};
  for (int32_t i = 0; i < 9; ++i) EXPECT_EQ(purposes[i], i);
  const int32_t logs[] = {KVP_LOG_ERROR, KVP_LOG_WARNING, KVP_LOG_INFO, KVP_LOG_DEBUG};
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(logs[i], i);
  const int32_t options[] = {KVP_OPTION_BOOLEAN, KVP_OPTION_INTEGER, KVP_OPTION_NUMBER, KVP_OPTION_TEXT};
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(options[i], i + 1);
  EXPECT_EQ(KVP_STATE_CONV, 1);
  EXPECT_EQ(KVP_STATE_RECURRENT, 2);
  const int32_t formats[] = {KVP_FORMAT_AFFINE, KVP_FORMAT_SYMMETRIC, KVP_FORMAT_FP8_E4M3, KVP_FORMAT_FP8_E5M2,
                             KVP_FORMAT_CODEBOOK};
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(formats[i], i + 1);
  const int32_t groups[] = {KVP_GROUP_WHOLE, KVP_GROUP_TOKENS, KVP_GROUP_HEAD_DIM};
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(groups[i], i);
  EXPECT_EQ(KVP_ROLE_KEY, 1);
  EXPECT_EQ(KVP_ROLE_VALUE, 2);
  const int32_t parts[] = {KVP_PART_DATA, KVP_PART_SCALE, KVP_PART_ZERO, KVP_PART_CODEBOOK};
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(parts[i], i + 1);
  EXPECT_EQ(KVP_PART_OWN, 16);
  EXPECT_EQ(KVP_SNAP_PORTABLE, 1);
  EXPECT_EQ(KVP_SNAP_NATIVE, 2);
  const int32_t snaps[] = {KVP_SNAP_KEY, KVP_SNAP_VALUE, KVP_SNAP_CONV, KVP_SNAP_RECURRENT, KVP_SNAP_ROWS};
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(snaps[i], i + 1);
  EXPECT_EQ(KVP_SNAP_META, 16);
  EXPECT_EQ(KVP_SNAP_OWN, 17);
}

TEST(AbiConstants, Flags) {
  const uint32_t call[] = {KVP_CALL_PREPARED, KVP_CALL_CAPTURE, KVP_CALL_CHECK};
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(call[i], 1u << i);
  const uint32_t cache[] = {KVP_CACHE_LOSSY,      KVP_CACHE_STABLE_ADDRESS, KVP_CACHE_PER_LAYER_VIEWS,
                            KVP_CACHE_OWN_MEMORY, KVP_CACHE_ROW_CROP,       KVP_CACHE_SCHEDULE,
                            KVP_CACHE_NO_ATTEND};
  for (uint32_t i = 0; i < 7; ++i) EXPECT_EQ(cache[i], 1u << i);
  const uint32_t attend[] = {KVP_ATTEND_CAUSAL, KVP_ATTEND_Q_OFFSET, KVP_ATTEND_APPEND, KVP_ATTEND_BIAS,
                             KVP_ATTEND_SINKS,  KVP_ATTEND_LSE,      KVP_ATTEND_PADDED};
  for (uint32_t i = 0; i < 7; ++i) EXPECT_EQ(attend[i], 1u << i);
  EXPECT_EQ(KVP_TENSOR_READ_ONLY, 1u);
  EXPECT_EQ(KVP_LAYER_SHARED, 1u);
  EXPECT_EQ(KVP_Q_STRICT, 1u);
  EXPECT_EQ(KVP_Q_KEEP_SCALE, 2u);
  EXPECT_EQ(KVP_QPART_SHARED, 1u);
}

}  // namespace
