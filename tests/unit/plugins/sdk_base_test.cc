// SPDX-License-Identifier: Apache-2.0
// The C++ side of the SDK by itself: errors at the border, poisoning, options, rows, the entry.
#include <gtest/gtest.h>
#include <kvplug/sdk/plugin.h>

#include <stdexcept>

#include "test_host.h"

namespace kvplug::sdk {
namespace {

// A cache that fails on request.
struct MoodyCache {
  explicit MoodyCache(const kvp_cache_create&) {}
  static void probe(const kvp_cache_create&, kvp_cache_info&) {}
  static void plan(const kvp_cache_create&, int64_t, int64_t, kvp_memory&) { throw 7; }
  static const void* extension(std::string_view) noexcept { return nullptr; }
  void lengths(int32_t, int64_t, kvp_lengths& out) const { out.seen = 5; }
  void update(const kvp_call&, const kvp_update_args&, kvp_tensor*, kvp_tensor*) { throw std::runtime_error("a bug"); }
  void reset(const kvp_call&) {}
  void gather(const kvp_call&, const int64_t*, int64_t) { throw std::bad_alloc(); }
  void crop(const kvp_call&, const int64_t*, int64_t n) { fail(KVP_INVALID_STATE, "cannot crop ", n); }
  void set_rollback(const kvp_call&, int64_t) { fail(KVP_DEVICE, "the device is gone"); }
  std::unique_ptr<MoodyCache> clone(const kvp_call&, uint64_t) const { return nullptr; }
  void reserve(const kvp_call&, int64_t, int64_t) {}
  void memory(int32_t, kvp_memory&) const {}
  size_t counters(kvp_counter*, size_t) const noexcept { return 0; }
  void attend_probe(const kvp_attend_desc&) const {}
  void attend(const kvp_call&, const kvp_attend_args&, kvp_tensor&, kvp_tensor*) {}
};

TEST(SdkBase, ExceptionsBecomeStatusesAndPoison) {
  const kvp_cache_iface* iface = CachePlugin<MoodyCache>::iface();
  kvp_cache_create create{};
  create.struct_size = sizeof create;
  kvp_cache* self = nullptr;
  ASSERT_EQ(iface->create(&create, &self, nullptr), KVP_OK);
  char text[64];
  kvp_error err{sizeof err, 0, 0, text, sizeof text, 0};
  const kvp_call call{sizeof call, KVP_DEVICE_CPU, 0, nullptr, 0, 0};
  kvp_memory memory{};
  memory.struct_size = sizeof memory;
  EXPECT_EQ(iface->plan(&create, 1, 1, &memory, &err), KVP_INTERNAL);
  EXPECT_EQ(iface->crop(self, &call, nullptr, 3, &err), KVP_INVALID_STATE);
  EXPECT_STREQ(text, "cannot crop 3");
  EXPECT_EQ(iface->gather(self, &call, nullptr, 0, &err), KVP_OUT_OF_MEMORY);
  EXPECT_EQ(iface->reserve(self, &call, 1, 1, &err), KVP_OK);  // not poisoned so far

  kvp_update_args args{};
  args.struct_size = sizeof args;
  kvp_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  for (const bool device : {false, true}) {
    if (device) {
      EXPECT_EQ(iface->set_rollback(self, &call, 1, &err), KVP_DEVICE);
    } else {
      EXPECT_EQ(iface->update(self, &call, &args, nullptr, nullptr, &err), KVP_INTERNAL);
      EXPECT_STREQ(text, "a bug");
    }
    EXPECT_EQ(iface->reserve(self, &call, 1, 1, &err), KVP_POISONED);
    EXPECT_EQ(iface->lengths(self, 0, 1, &lengths, &err), KVP_POISONED);
    EXPECT_EQ(lengths.seen, 0);
    EXPECT_EQ(iface->reset(self, &call, &err), KVP_OK);
    EXPECT_EQ(iface->reserve(self, &call, 1, 1, &err), KVP_OK);
  }
  iface->destroy(self);
  iface->destroy(nullptr);
}

TEST(SdkBase, ErrorTextsAreCutAtACharacter) {
  char buf[8];
  kvp_error err{sizeof err, 0, 0, buf, 6, 0};
  write_error(&err, KVP_IO, "ab\xc3\xa4\xe2\x82\xac!", 8);  // "abä€!"
  EXPECT_STREQ(buf, "ab\xc3\xa4");
  EXPECT_EQ(err.len, 8u);
  err.cap = 8;
  write_error(&err, KVP_IO, "ab\xc3\xa4\xe2\x82\xac!", 8);
  EXPECT_STREQ(buf, "ab\xc3\xa4\xe2\x82\xac");
  kvp_error old{offsetof(kvp_error, cap), 0, 0, buf, 8, 1234};
  write_error(&old, KVP_IO, "text", 4);
  EXPECT_EQ(old.code, KVP_IO);
  EXPECT_EQ(old.len, 1234u);
}

TEST(SdkBase, Options) {
  kvp_option options[2] = {};
  options[0].key = "depth";
  options[0].type = KVP_OPTION_INTEGER;
  options[0].integer = 4;
  options[1].key = "mode";
  options[1].type = KVP_OPTION_TEXT;
  options[1].text = "fast";
  const Options read(options, 2, {"depth", "mode", "flag"});
  EXPECT_EQ(read.integer("depth", 1, 0, 8), 4);
  EXPECT_EQ(read.text("mode", "slow"), "fast");
  EXPECT_TRUE(read.boolean("flag", true));
  EXPECT_THROW(read.integer("depth", 1, 0, 3), Fault);
  EXPECT_THROW(read.integer("mode", 1, 0, 3), Fault);
  EXPECT_THROW(Options(options, 2, {"depth"}), Fault);
}

TEST(SdkBase, RowsKeepPaddingAndRaggedEnds) {
  Rows rows;
  rows.start(3);
  const int64_t pad[3] = {2, 0, 4}, count[3] = {4, 3, 4};
  const Append first{3, 5, pad, count};
  rows.check_append(first);
  rows.append(first);
  EXPECT_EQ(rows[0].seen, 4);
  EXPECT_EQ(rows[0].stored(), 2);
  EXPECT_EQ(rows[2].stored(), 0);
  EXPECT_EQ(rows.longest(), 4);
  const int64_t more[3] = {0, 0, 1};
  rows.check_append({3, 2, more, nullptr});  // row 2 holds nothing but padding
  EXPECT_THROW(rows.check_append({3, 2, pad, nullptr}), Fault);
  EXPECT_THROW(rows.check_append({2, 2, nullptr, nullptr}), Fault);
  rows.truncate(0, 1);
  EXPECT_EQ(rows[0].pad, 1);
  EXPECT_EQ(rows[0].stored(), 0);
  const int64_t src[4] = {1, -1, 2, 1};
  const Rows next = rows.gathered(src, 4);
  EXPECT_EQ(next.batch(), 4);
  EXPECT_EQ(next[0].seen, 3);
  EXPECT_EQ(next[1].seen, 0);
  EXPECT_EQ(next[2].pad, 4);
}

TEST(SdkBase, TheEntryNamesBothVersions) {
  const kvp_plugin plugin = {sizeof plugin, KVP_ABI_MAJOR, 9, 9, 0, "acme", "1", "Acme", 0, 0, nullptr, nullptr};
  const kvp_plugin* out = nullptr;
  char text[200];
  kvp_error err{sizeof err, 0, 0, text, sizeof text, 0};
  EXPECT_EQ(enter(test::TestHost::get().table(), plugin, &out, &err), KVP_UNSUPPORTED);
  EXPECT_STREQ(text, "acme needs a host of ABI 0.9 or later of the same major; the host has ABI 0.1");
  EXPECT_EQ(out, nullptr);
  EXPECT_EQ(enter(nullptr, plugin, &out, &err), KVP_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvplug::sdk
