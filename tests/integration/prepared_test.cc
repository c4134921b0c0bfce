// SPDX-License-Identifier: Apache-2.0
// The prepared step: a decode step over a static cache takes no memory. This program has allocation functions of its
// own, which every library in it uses, LibTorch and oneDNN included, and counts what is taken while `watching`.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "integration/run_file.h"
#include "support/client.h"

namespace {

constexpr size_t kSmall = 4096;
std::atomic<bool> watching{false};
std::atomic<uint64_t> small{0}, large{0}, largest{0};

void note(size_t bytes) {
  if (!watching.load(std::memory_order_relaxed)) return;
  (bytes > kSmall ? large : small).fetch_add(1);
  if (bytes > largest.load()) largest.store(bytes);
}

}  // namespace

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t n, size_t bytes);
void* __libc_realloc(void* block, size_t bytes);
void* __libc_memalign(size_t align, size_t bytes);

void* malloc(size_t bytes) noexcept {
  note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t n, size_t bytes) noexcept {
  note(n * bytes);
  return __libc_calloc(n, bytes);
}
void* realloc(void* block, size_t bytes) noexcept {
  note(bytes);
  return __libc_realloc(block, bytes);
}
void* memalign(size_t align, size_t bytes) noexcept {
  note(bytes);
  return __libc_memalign(align, bytes);
}
void* aligned_alloc(size_t align, size_t bytes) noexcept {
  note(bytes);
  return __libc_memalign(align, bytes);
}
int posix_memalign(void** out, size_t align, size_t bytes) noexcept {
  note(bytes);
  *out = __libc_memalign(align, bytes);
  return *out == nullptr ? ENOMEM : 0;
}
void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  note(bytes);
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}
}

namespace kvplug::testing {
namespace {

// The application's allocator: every block of K/V is taken here.
uint64_t accounted = 0;
int32_t take(void*, const kvp_mem* mem, void** out, kvp_error*) {
  ++accounted;
  const size_t align = std::max<size_t>(mem->align, 64);
  *out = std::aligned_alloc(align, (mem->bytes + align - 1) / align * align);
  return *out ? KVP_OK : KVP_OUT_OF_MEMORY;
}

struct Steps {
  uint64_t small = 0, large = 0, largest = 0, accounted = 0;
  json counters, explain;
};

// What the steps of a decode took, the first three left out.
Steps decode(const json& generation) {
  kvplug_host_params params{};
  params.struct_size = sizeof params;
  params.mem_alloc = take;
  params.mem_free = [](void*, const kvp_mem*, void* block) { std::free(block); };
  const auto host = client::make<client::Host>(kvplug_host_create, &params);
  json keys = {{"max_new_tokens", 100}};
  keys.update(generation);
  const json document = run_document(model_folder("llama"), keys);
  const auto model = load_model(host.get(), document);
  const auto session = make_session(host.get(), model.get(), document);
  append_rows(session.get(), {Ids(kPrompt.begin(), kPrompt.end()), {10, 41, 130}});
  const auto run =
      client::make<client::Generation>(kvplug_generation_start, session.get(), static_cast<kvplug_config*>(nullptr));
  Steps out;
  uint64_t accounted_before = 0;
  int tokens = 0;
  kvplug_event event{};
  event.struct_size = sizeof event;
  for (;;) {
    watching = tokens >= 6;
    if (tokens == 6) {
      small = large = largest = 0;
      accounted_before = accounted;
    }
    const kvplug_status status = kvplug_generation_next(run.get(), 0, &event, nullptr);
    watching = false;
    if (status != KVP_OK) break;
    if (event.type == KVPLUG_EVENT_TOKEN) ++tokens;
  }
  EXPECT_EQ(tokens, 200);
  out.small = small, out.large = large, out.largest = largest;
  out.accounted = accounted - accounted_before;
  out.counters = json_from(kvplug_session_stats, session.get())["counters"];
  out.explain = json_from(kvplug_session_explain, session.get())["prepared_step"];
  return out;
}

TEST(Prepared, DecodeStepTakesNoMemory) {
  for (const json& way : {json::object(), json{{"do_sample", true}, {"top_p", 0.9}, {"repetition_penalty", 1.1}}}) {
    json generation = {{"cache_implementation", "static"}};
    generation.update(way);
    const Steps steps = decode(generation);
    EXPECT_EQ(steps.accounted, 0u) << way;
    EXPECT_EQ(steps.large, 0u) << way << ": the largest has " << steps.largest << " bytes";
    EXPECT_EQ(steps.counters["prepared_steps"], 99) << "every step but the prompt's";
    EXPECT_EQ(steps.explain, json({{"used", true}, {"reason", ""}}));
    std::printf("%s: %llu small allocations in 97 steps of 2 rows, the largest of %llu bytes\n", way.dump().c_str(),
                static_cast<unsigned long long>(steps.small), static_cast<unsigned long long>(steps.largest));
  }
}

// What the test above would see if steps were not prepared.
TEST(Prepared, GrowingCacheIsSeenToTakeMemory) {
  const Steps steps = decode({{"cache_implementation", "dynamic"}});
  EXPECT_EQ(steps.counters["prepared_steps"], 0);
  EXPECT_EQ(steps.explain["used"], false);
  EXPECT_NE(steps.explain["reason"].get<std::string>().find("grows"), std::string::npos) << steps.explain;
  watching = true;
  std::free(std::malloc(kSmall + 1));
  watching = false;
  EXPECT_GE(large.load(), 1u) << "the counting works";
}

TEST(Prepared, DisableCompileTurnsItOff) {
  const Steps steps = decode({{"cache_implementation", "static"}, {"disable_compile", true}});
  EXPECT_EQ(steps.counters["prepared_steps"], 0);
  EXPECT_EQ(steps.explain, json({{"used", false}, {"reason", "disable_compile = true"}}));
  EXPECT_EQ(steps.counters["fused_attend_calls"], 2 * 100) << "all else is the same";
  const RunFile file(llama_run("generation.cache_implementation = \"static\"\n"));
  const auto explain = [&](const char* value) {
    return kvplug_program({"explain", file.path(), "--disable-compile", value}).out;
  };
  EXPECT_NE(explain("false").find("prepared step: yes\n"), std::string::npos);
  EXPECT_NE(explain("true").find("prepared step: no (disable_compile = true)\n"), std::string::npos);
  EXPECT_NE(kvplug_program({"explain", file.path(), "--cache", "dynamic"})
                .out.find("prepared step: no (cache \"dynamic\" grows"),
            std::string::npos);
}

}  // namespace
}  // namespace kvplug::testing
