// SPDX-License-Identifier: Apache-2.0
// [cache.oom_fallback]: a run that is out of memory, or would be, is tried again with another kind, once.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "integration/run_file.h"
#include "support/client.h"

namespace kvplug::testing {
namespace {

// Less than "dynamic" needs for its scratch, more than "example/exact_c" needs in all.
constexpr char kLimit[] = "memory.max_host_bytes = \"400KiB\"\n";

std::string fallback(const std::string& kind) {
  return "[cache.oom_fallback]\ncache_implementation = \"" + kind + "\"\n";
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  size_t from = 0;
  for (const std::string& word : words) {
    const size_t at = text.find(word, from);
    EXPECT_NE(at, std::string::npos) << word << " in this order in " << text;
    if (at != std::string::npos) from = at;
  }
}

class Foreseen : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string plan() { return std::string("memory.plan = \"") + GetParam() + "\"\n"; }
};

TEST_P(Foreseen, OrMetTheLimitLeadsToTheOtherKind) {
  const RunFile file(llama_run(kLimit + plan() + fallback("example/exact_c")));
  const Outcome text = kvplug_program({"run", file.path()});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.out, json(kAnswer).dump() + "\n");
  expect_words(text.err, {"bytes", "retrying with cache_implementation='example/exact_c'\n"});
  EXPECT_EQ(text.err.find("retrying"), text.err.rfind("retrying")) << "told once: " << text.err;

  const Outcome got = kvplug_program({"run", file.path(), "--json"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  const json document = json::parse(got.out);
  EXPECT_EQ(document["cache"]["counters"]["oom_fallbacks"], 1);
  EXPECT_EQ(document["cache"]["implementation"], "example/exact_c");
  EXPECT_EQ(document["cache"]["stack"][0]["plugin"], "example/exact_c");
  ASSERT_EQ(document["notices"].size(), 1u);
  expect_words(document["notices"][0]["text"], {"retrying with cache_implementation='example/exact_c'"});
}

TEST_P(Foreseen, WithoutAnotherKindItIsExitCodeFive) {
  const RunFile file(llama_run(kLimit + plan()));
  expect_error(kvplug_program({"run", file.path()}), 5,
               {"bytes", std::string(GetParam()) == "check" ? "may use 389120" : "bytes of the limit of",
                "\"offloaded\"", "oom_fallback"});
}

TEST_P(Foreseen, SecondFailureShowsBothMessages) {
  const RunFile file(llama_run(kLimit + plan() + fallback("static")));
  const Outcome got = kvplug_program({"run", file.path()});
  EXPECT_EQ(got.exit_code, 5) << got.err;
  EXPECT_EQ(got.out, "");
  expect_words(got.err, {"retrying with cache_implementation='static'", "error: ", "this was the retry after: "});
}

TEST(OutOfMemory, ARetryWithoutRoomOnTheDiskShowsBothMessages) {
  const std::string folder = std::filesystem::temp_directory_path();
  const RunFile file(llama_run("memory = { max_host_bytes = 1900000, plan = \"off\" }\n" + fallback("offloaded") +
                               "cache_config = { disk_path = \"" + folder + "\" }\n"));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit most{1024, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);  // the program keeps both
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &most), 0);
  const Outcome got = kvplug_program({"run", file.path()});
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(got.exit_code, 5) << got.err;
  expect_words(got.err, {"retrying with cache_implementation='offloaded'", "error: ", "disk_path '" + folder + "'",
                         "this was the retry after: ", "host memory"});
}

TEST_P(Foreseen, LaterBatchesBeginWithTheOtherKind) {
  std::string text = llama_run(kLimit + plan() + fallback("example/exact_c"));
  text.replace(text.find(" }]"), 3, " }, { id = \"q\", input_ids = " + json(kPrompt).dump() + " }]");
  const RunFile file(text);
  const Outcome got = kvplug_program({"run", file.path(), "--json"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  const json document = json::parse(got.out);
  EXPECT_EQ(document["cache"]["counters"]["oom_fallbacks"], 1);
  for (const json& result : document["results"]) EXPECT_EQ(result["sequences"][0]["token_ids"], kAnswer);
}

INSTANTIATE_TEST_SUITE_P(Plan, Foreseen, ::testing::Values("check", "off"),
                         [](const auto& test) { return std::string(test.param); });

TEST(OutOfMemory, PlanShowsWhatTheOtherKindNeeds) {
  const auto plan = [](const std::string& more, std::vector<std::string> flags) {
    const RunFile file(llama_run(more));
    flags.insert(flags.begin(), {"plan", file.path()});
    const Outcome got = kvplug_program(flags);
    EXPECT_EQ(got.exit_code, 0) << got.err;
    return got.out;
  };
  const json both = json::parse(plan(fallback("static"), {"--json"}));
  json alone = json::parse(plan("generation.cache_implementation = \"static\"\n", {"--json"}));
  for (const char* same : {"rows", "cache_bytes", "peak_host_bytes", "cache_implementation", "batch", "tokens"}) {
    EXPECT_EQ(both["oom_fallback"][same], alone[same]) << same;
  }
  EXPECT_TRUE(alone["oom_fallback"].is_null());
  expect_words(plan(fallback("static"), {}), {"dynamic", "total", "if memory runs out", "static", "total"});
}

TEST(OutOfMemory, ExplainShowsWhoServesTheLayersOfTheOtherKind) {
  const auto explain = [](const std::string& more, std::vector<std::string> flags) {
    const RunFile file(llama_run(more));
    flags.insert(flags.begin(), {"explain", file.path()});
    const Outcome got = kvplug_program(flags);
    EXPECT_EQ(got.exit_code, 0) << got.err;
    return got.out;
  };
  const json both = json::parse(explain(fallback("static"), {"--json"}))["cache"];
  json alone = json::parse(explain("generation.cache_implementation = \"static\"\n", {"--json"}))["cache"];
  EXPECT_TRUE(alone["oom_fallback"].is_null());
  alone.erase("oom_fallback");
  EXPECT_EQ(both["implementation"], "dynamic");
  EXPECT_EQ(both["oom_fallback"], alone);
  expect_words(explain(fallback("static"), {}), {"dynamic", "if memory runs out: static\n  layers 0..1"});
}

TEST(OutOfMemory, KindToRetryWithMustBeKnown) {
  const RunFile file(llama_run(fallback("offlaoded")));
  expect_error(kvplug_program({"check", file.path()}), 2,
               {"cache.oom_fallback.cache_implementation", "did you mean \"offloaded\"?"});
  const RunFile options(llama_run("[cache.oom_fallback.cache_config]\ndisk_path = \"x\"\n"));
  expect_error(kvplug_program({"check", options.path()}), 2,
               {"cache.oom_fallback.cache_config.disk_path", "not named"});
  const RunFile wrong(llama_run(fallback("dynamic") + "cache_config = { disk_path = \"x\" }\n"));
  expect_error(kvplug_program({"check", wrong.path()}), 2, {"cache.oom_fallback.cache_config.disk_path"});
}

// The application's allocator, which says no when told to.
struct Allocator {
  int refusals = 0;
  static int32_t take(void* user, const kvp_mem* mem, void** out, kvp_error* err) {
    auto& self = *static_cast<Allocator*>(user);
    if (self.refusals > 0) {
      --self.refusals;
      if (err && err->buf && err->cap > 0) std::snprintf(err->buf, err->cap, "the test said no");
      return KVP_OUT_OF_MEMORY;
    }
    const size_t align = std::max<size_t>(mem->align, 64);
    *out = std::aligned_alloc(align, (mem->bytes + align - 1) / align * align);
    return *out ? KVP_OK : KVP_OUT_OF_MEMORY;
  }
};

struct Got {
  std::vector<Ids> rows = std::vector<Ids>(2);
  std::vector<std::string> notices;
  kvplug_status status = KVP_OK;
  std::string text;
  json counters;
};

// Two rows of sampled tokens; after `refuse_from` tokens the allocator refuses `refusals` times.
Got sample(size_t refuse_from, int refusals, const char* other) {
  Allocator allocator;
  kvplug_host_params params{};
  params.struct_size = sizeof params;
  params.mem_user = &allocator;
  params.mem_alloc = Allocator::take;
  params.mem_free = [](void*, const kvp_mem*, void* block) { std::free(block); };
  const auto host = client::make<client::Host>(kvplug_host_create, &params);
  // This kind takes memory as it grows.
  json document =
      run_document(model_folder("llama"),
                   {{"cache_implementation", "example/exact_c"}, {"max_new_tokens", 90}, {"do_sample", true}});
  document["run"] = {{"seed", 7}};
  if (other) document["cache"] = {{"oom_fallback", {{"cache_implementation", other}}}};
  const auto model = load_model(host.get(), document);
  const auto session = make_session(host.get(), model.get(), document);
  append_rows(session.get(), {Ids(kPrompt.begin(), kPrompt.end()), {10, 41, 130}});
  const auto run =
      client::make<client::Generation>(kvplug_generation_start, session.get(), static_cast<kvplug_config*>(nullptr));
  Got out;
  char text[2048] = "";
  kvp_error err{};
  err.struct_size = sizeof err;
  err.buf = text;
  err.cap = sizeof text;
  kvplug_event event{};
  event.struct_size = sizeof event;
  size_t tokens = 0;
  for (;;) {
    out.status = kvplug_generation_next(run.get(), 0, &event, &err);
    if (out.status != KVP_OK) break;
    if (event.type == KVPLUG_EVENT_NOTICE) out.notices.emplace_back(event.text, event.text_len);
    if (event.type != KVPLUG_EVENT_TOKEN) continue;
    EXPECT_EQ(event.position, out.rows[event.row].size() + (event.row == 0 ? kPrompt.size() : 3));
    out.rows[event.row].push_back(event.token_id);
    if (++tokens == refuse_from) allocator.refusals = refusals;
  }
  out.text = text;
  out.counters = json_from(kvplug_session_stats, session.get())["counters"];
  return out;
}

TEST(OutOfMemory, DecodeGoesOnWhereItWas) {
  const Got want = sample(0, 0, nullptr), got = sample(20, 1, "dynamic");
  EXPECT_EQ(want.status, KVPLUG_END);
  EXPECT_EQ(got.status, KVPLUG_END) << got.text;
  EXPECT_EQ(got.rows, want.rows) << "delivered tokens stay, generators go on";
  ASSERT_EQ(got.notices.size(), 1u);
  expect_words(got.notices[0], {"the test said no", "\nretrying with cache_implementation='dynamic'"});
  EXPECT_EQ(got.counters["oom_fallbacks"], 1);
  EXPECT_GT(got.counters["fused_attend_calls"].get<int>(), 0) << "of the other kind";
}

TEST(OutOfMemory, OneRetryOnly) {
  const Got twice = sample(20, 1000, "dynamic"), never = sample(20, 1000, nullptr);
  EXPECT_EQ(twice.status, KVP_OUT_OF_MEMORY);
  expect_words(twice.text, {"plugin \"dynamic\"", "this was the retry after: ", "plugin \"example.cache-c\""});
  EXPECT_EQ(never.status, KVP_OUT_OF_MEMORY);
  EXPECT_TRUE(never.notices.empty());
  expect_words(never.text, {"the test said no", "\"offloaded\""});
  EXPECT_EQ(never.rows, twice.rows) << "what was delivered before";
}

}  // namespace
}  // namespace kvplug::testing
