// SPDX-License-Identifier: Apache-2.0
// The host table as a plugin uses it: accounted memory, limits, injected faults, the log, from any thread.
#include "core/host_services.h"

#include <gtest/gtest.h>
#include <kvplug/version.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error_buffer.h"

namespace kvplug {
namespace {

kvp_mem wish(uint64_t owner, uint64_t bytes, int32_t purpose = KVP_PURPOSE_KV) {
  return {sizeof(kvp_mem), owner, bytes, 0, KVP_TIER_HOST, purpose, 1, 0, nullptr};
}

kvp_status take(const kvp_mem& mem, void** out, std::string* text = nullptr) {
  ErrorText err;
  const kvp_host* host = HostServices::table();
  const kvp_status status = host->mem_alloc(host->ctx, &mem, out, err.get());
  if (text != nullptr) *text = err.text();
  return status;
}

void give(const kvp_mem& mem, void* block) { HostServices::table()->mem_free(HostServices::table()->ctx, &mem, block); }

struct Lines {
  std::mutex mutex;
  std::vector<std::string> lines;
  static void add(void* self, int32_t level, const char* area, const char* text, size_t len) {
    auto& log = *static_cast<Lines*>(self);
    const std::lock_guard lock(log.mutex);
    log.lines.push_back(std::to_string(level) + " " + area + ": " + std::string(text, len));
  }
};

TEST(HostMemory, BooksEveryBlockOnItsOwnerTierAndPurpose) {
  HostServices host;
  const uint64_t owner = host.open_owner("cache \"test\"");
  const kvp_mem kv = wish(owner, 1000), scratch = wish(owner, 50, KVP_PURPOSE_SCRATCH);
  void *a = nullptr, *b = nullptr;
  ASSERT_EQ(take(kv, &a), KVP_OK);
  ASSERT_EQ(take(scratch, &b), KVP_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0U);
  std::memset(a, 1, 1000);

  MemoryUse use = Accounts::get().use(owner);
  EXPECT_EQ(use.live[KVP_TIER_HOST][KVP_PURPOSE_KV], 1000U);
  EXPECT_EQ(use.live[KVP_TIER_HOST][KVP_PURPOSE_SCRATCH], 50U);
  EXPECT_EQ(use.blocks, 2U);
  give(scratch, b);
  use = host.memory().use();
  EXPECT_EQ(use.tier_bytes(KVP_TIER_HOST), 1000U);
  EXPECT_EQ(use.peak[KVP_TIER_HOST], 1050U);

  // The instance ends first: the block stays booked, and the token known, until it is freed.
  host.close_owner(owner);
  EXPECT_TRUE(Accounts::get().known(owner));
  give(kv, a);
  EXPECT_FALSE(Accounts::get().known(owner));
  EXPECT_EQ(host.memory().use().blocks, 0U);
}

TEST(HostMemory, ZeroBytesAreNullAndOk) {
  HostServices host;
  const uint64_t owner = host.open_owner("cache");
  void* block = &block;
  EXPECT_EQ(take(wish(owner, 0), &block), KVP_OK);
  EXPECT_EQ(block, nullptr);
  give(wish(owner, 0), nullptr);
  host.close_owner(owner);
}

TEST(HostMemory, RefusesWhatCannotBeAndLeavesOutUntouched) {
  HostServices host;
  const uint64_t owner = host.open_owner("cache");
  int mark = 0;
  void* block = &mark;
  std::string text;
  kvp_mem mem = wish(owner + 1000, 10);
  EXPECT_EQ(take(mem, &block, &text), KVP_INVALID_ARGUMENT);
  EXPECT_NE(text.find(std::to_string(owner + 1000)), std::string::npos);
  mem = wish(owner, 10);
  mem.align = 48;
  EXPECT_EQ(take(mem, &block), KVP_INVALID_ARGUMENT);
  mem = wish(owner, 10);
  mem.tier = KVP_TIER_FILE;
  EXPECT_EQ(take(mem, &block), KVP_INVALID_ARGUMENT);
  mem = wish(owner, 10);
  mem.tier = KVP_TIER_DEVICE;
  EXPECT_EQ(take(mem, &block), KVP_UNSUPPORTED);
  for (const int32_t purpose : {-1, KVP_N_PURPOSES}) {
    EXPECT_EQ(take(wish(owner, 10, purpose), &block), KVP_INVALID_ARGUMENT);
  }
  mem = wish(owner, 10);
  mem.struct_size = 24;
  EXPECT_EQ(take(mem, &block), KVP_INVALID_ARGUMENT);
  EXPECT_EQ(take(wish(owner, UINT64_MAX - 8), &block), KVP_OUT_OF_MEMORY);
  EXPECT_EQ(block, &mark);
  EXPECT_EQ(host.memory().use().blocks, 0U);
  host.close_owner(owner);
  EXPECT_FALSE(Accounts::get().known(owner));
}

TEST(HostMemory, LimitsNameWhatWasAskedAndWhatIsLeft) {
  HostServices host;
  host.memory().set_limit(KVP_TIER_HOST, 1024);
  const uint64_t owner = host.open_owner("cache \"dynamic\"");
  void* block = nullptr;
  const kvp_mem first = wish(owner, 1000);
  ASSERT_EQ(take(first, &block), KVP_OK);
  std::string text;
  void* second = nullptr;
  EXPECT_EQ(take(wish(owner, 64), &second, &text), KVP_OUT_OF_MEMORY);
  EXPECT_EQ(text, "cache \"dynamic\" asked for 64 bytes of host memory (kv), 24 bytes of the limit of 1024 are left");
  EXPECT_EQ(take(wish(owner, 24), &second), KVP_OK);
  give(wish(owner, 24), second);
  give(first, block);
  host.close_owner(owner);
}

TEST(HostMemory, TheNthAllocationFailsOnRequest) {
  HostServices host;
  const uint64_t owner = host.open_owner("cache");
  host.memory().fail_allocation(3);
  std::vector<void*> blocks(5, nullptr);
  std::vector<kvp_status> seen;
  for (void*& block : blocks) seen.push_back(take(wish(owner, 8), &block));
  EXPECT_EQ(seen, (std::vector<kvp_status>{KVP_OK, KVP_OK, KVP_OUT_OF_MEMORY, KVP_OK, KVP_OK}));
  EXPECT_EQ(host.memory().allocations(), 5U);
  for (void* block : blocks) give(wish(owner, 8), block);
  host.close_owner(owner);
}

TEST(HostMemory, WrongFreesAreLoggedNotObeyed) {
  Lines lines;
  HostServices host({Lines::add, &lines, KVP_LOG_ERROR, {}, nullptr});
  const uint64_t owner = host.open_owner("cache \"x\"");
  void* block = nullptr;
  ASSERT_EQ(take(wish(owner, 8), &block), KVP_OK);
  give(wish(owner, 9), block);  // Other bytes than taken.
  give(wish(owner, 8), block);  // Twice.
  ASSERT_EQ(lines.lines.size(), 2U);
  EXPECT_NE(lines.lines[0].find("cache \"x\" frees 8 bytes"), std::string::npos);
  EXPECT_NE(lines.lines[1].find("never taken, or was freed before"), std::string::npos);
  EXPECT_EQ(host.memory().use().blocks, 0U);
  host.close_owner(owner);
}

TEST(HostMemory, TheEnginesAllocatorIsUsed) {
  struct Engine {
    int live = 0;
    uint64_t asked = 0;
    bool refuse = false;
  } engine;
  HostOptions options;
  options.allocator.user = &engine;
  options.allocator.alloc = [](void* user, const kvp_mem* mem, void** out, kvp_error* err) -> int32_t {
    auto& e = *static_cast<Engine*>(user);
    if (e.refuse) return write_error(err, KVP_OUT_OF_MEMORY, "the engine's pool is full");
    ++e.live;
    e.asked += mem->bytes;
    *out = std::malloc(mem->bytes);
    return KVP_OK;
  };
  options.allocator.free = [](void* user, const kvp_mem*, void* block) {
    --static_cast<Engine*>(user)->live;
    std::free(block);
  };
  HostServices host(options);
  const uint64_t owner = host.open_owner("cache");
  kvp_mem mem = wish(owner, 100);
  mem.tier = KVP_TIER_DEVICE;
  void* block = nullptr;
  ASSERT_EQ(take(mem, &block), KVP_OK);
  EXPECT_EQ(engine.live, 1);
  EXPECT_EQ(engine.asked, 100U);
  EXPECT_EQ(host.memory().use().tier_bytes(KVP_TIER_DEVICE), 100U);
  engine.refuse = true;
  void* other = nullptr;
  std::string text;
  EXPECT_EQ(take(mem, &other, &text), KVP_OUT_OF_MEMORY);
  EXPECT_EQ(text, "the engine's pool is full");
  EXPECT_EQ(host.memory().use().tier_bytes(KVP_TIER_DEVICE), 100U);
  give(mem, block);
  EXPECT_EQ(engine.live, 0);
  host.close_owner(owner);
}

TEST(HostTable, WorksFromAnyThread) {
  Lines lines;
  HostServices host({Lines::add, &lines, KVP_LOG_INFO, {}, nullptr});
  const uint64_t owner = host.open_owner("cache");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([owner] {
      const kvp_host* table = HostServices::table();
      for (int i = 0; i < 200; ++i) {
        const kvp_mem mem = wish(owner, static_cast<uint64_t>(i + 1));
        void* block = nullptr;
        ASSERT_EQ(take(mem, &block), KVP_OK);
        if (i % 50 == 0) table->log(table->ctx, KVP_LOG_INFO, "t", "line", 4);
        give(mem, block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines.lines.size(), 16U);
  EXPECT_EQ(host.memory().use().blocks, 0U);
  host.close_owner(owner);
}

TEST(HostTable, KnowsItsExtensionsAndVersions) {
  const kvp_host* table = HostServices::table();
  EXPECT_EQ(table->struct_size, sizeof(kvp_host));
  EXPECT_EQ(table->abi_major, static_cast<uint32_t>(KVP_ABI_MAJOR));
  EXPECT_NE(table->get_extension(table->ctx, KVP_EXT_HOST_PARALLEL), nullptr);
  EXPECT_EQ(table->get_extension(table->ctx, "kvp.host.nonsense/1"), nullptr);
  EXPECT_EQ(table->get_extension(table->ctx, nullptr), nullptr);
}

TEST(HostLog, FiltersByLevelAndGoesToLivingHostsOnly) {
  Lines first, second;
  const kvp_host* table = HostServices::table();
  HostServices host({Lines::add, &first, KVP_LOG_WARNING, {}, nullptr});
  {
    HostServices other({Lines::add, &second, KVP_LOG_DEBUG, {}, nullptr});
    table->log(table->ctx, KVP_LOG_INFO, "area", "information", 11);
    table->log(table->ctx, 77, nullptr, "\xff", 1);  // Unknown level, no area, no UTF-8.
  }
  table->log(table->ctx, KVP_LOG_WARNING, "area", "late warning", 4);
  EXPECT_EQ(first.lines, (std::vector<std::string>{"1 area: late"}));
  EXPECT_EQ(second.lines, (std::vector<std::string>{"2 area: information", "3 plugin: ?"}));
}

}  // namespace
}  // namespace kvplug
