// SPDX-License-Identifier: Apache-2.0
// The application API from outside: threads, order of release, cancelling, and the same cache in other languages.
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "integration/run_file.h"
#include "support/client.h"

namespace kvplug::testing {
namespace {

const std::vector<Ids> kBatch = {{10, 30, 84, 172, 41, 197, 134, 105, 110}, {10, 26, 52, 88, 134, 190}, {10, 41, 130}};

client::Host new_host() { return client::make<client::Host>(kvplug_host_create, nullptr); }

json llama(const json& generation = json::object()) {
  json keys = {{"max_new_tokens", 24}};
  keys.update(generation);
  return run_document(model_folder("llama"), keys);
}

std::vector<Ids> answers(kvplug_session* session, size_t rows) {
  std::vector<Ids> out;
  for (const auto& steps : play(session, rows).rows) out.push_back(choices(steps));
  return out;
}

std::vector<Ids> answers(kvplug_host* host, kvplug_model* model, const json& document, const std::vector<Ids>& rows) {
  const auto session = make_session(host, model, document);
  append_rows(session.get(), rows);
  return answers(session.get(), rows.size());
}

TEST(Threads, SessionsOfOneModelRunInParallel) {
  const auto host = new_host();
  const auto model = load_model(host.get(), llama());
  std::vector<std::vector<Ids>> prompts;
  for (int32_t i = 0; i < 12; ++i) {
    auto rows = kBatch;
    for (Ids& row : rows) row[1] = 20 + i;
    prompts.push_back(std::move(rows));
  }
  std::vector<std::vector<Ids>> serial, parallel(prompts.size());
  for (const auto& rows : prompts) serial.push_back(answers(host.get(), model.get(), llama(), rows));
  std::vector<std::thread> threads;
  for (size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = first; i < prompts.size(); i += 4) {
        parallel[i] = answers(host.get(), model.get(), llama(), prompts[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(parallel, serial);
}

// An allocator of the application's that looks at a session from another thread whenever the library asks for memory:
// whoever asks is inside a call on that session.
struct Watcher {
  kvplug_session* session = nullptr;
  kvplug_status seen = KVP_OK;

  static int32_t allocate(void* user, const kvp_mem* mem, void** out, kvp_error*) {
    auto& self = *static_cast<Watcher*>(user);
    const size_t alignment = std::max<size_t>(mem->align, 64);
    *out = std::aligned_alloc(alignment, (mem->bytes + alignment - 1) / alignment * alignment);
    if (self.session) {
      std::thread([&self] {
        uint64_t tokens = 0;
        self.seen = kvplug_session_length(self.session, 0, &tokens, nullptr);
      }).join();
    }
    return *out ? KVP_OK : KVP_OUT_OF_MEMORY;
  }
};

TEST(Threads, SecondOneInASessionGetsBusy) {
  Watcher watcher;
  kvplug_host_params params{};
  params.struct_size = sizeof params;
  params.mem_user = &watcher;
  params.mem_alloc = Watcher::allocate;
  params.mem_free = [](void*, const kvp_mem*, void* block) { std::free(block); };
  const auto host = client::make<client::Host>(kvplug_host_create, &params);
  const auto model = load_model(host.get(), llama());
  const auto session = make_session(host.get(), model.get(), llama());
  append_rows(session.get(), {{1, 2, 3}});
  watcher.session = session.get();
  answers(session.get(), 1);
  watcher.session = nullptr;
  EXPECT_EQ(watcher.seen, KVPLUG_E_BUSY);
  uint64_t tokens = 0;
  client::call(kvplug_session_length, session.get(), 0u, &tokens);
  EXPECT_EQ(tokens, 27u) << "the session is free again";
}

TEST(Handles, OpenGenerationKeepsItsSessionAsItIs) {
  const auto host = new_host();
  const auto model = load_model(host.get(), llama());
  const auto session = make_session(host.get(), model.get(), llama({{"max_new_tokens", 8}}));
  append_rows(session.get(), {{1, 2, 3}});
  auto generation =
      client::make<client::Generation>(kvplug_generation_start, session.get(), static_cast<kvplug_config*>(nullptr));
  kvplug_event event{};
  event.struct_size = sizeof event;
  ASSERT_EQ(kvplug_generation_next(generation.get(), 0, &event, nullptr), KVP_OK);
  kvplug_generation* second = nullptr;
  kvplug_session* copy = nullptr;
  const int32_t id = 1;
  EXPECT_EQ(kvplug_session_reset(session.get(), nullptr), KVPLUG_E_BUSY);
  EXPECT_EQ(kvplug_session_append_ids(session.get(), 0, &id, 1, nullptr), KVPLUG_E_BUSY);
  EXPECT_EQ(kvplug_session_set_ids(session.get(), 0, &id, 1, nullptr, nullptr), KVPLUG_E_BUSY);
  EXPECT_EQ(kvplug_session_clone(session.get(), &copy, nullptr), KVPLUG_E_BUSY);
  EXPECT_EQ(kvplug_generation_start(session.get(), nullptr, &second, nullptr), KVPLUG_E_BUSY);
  EXPECT_EQ(second, nullptr);
  generation.reset();
  EXPECT_EQ(kvplug_session_reset(session.get(), nullptr), KVP_OK);
}

TEST(Threads, CancelFromAnotherThread) {
  const auto host = new_host();
  const auto model = load_model(host.get(), llama());
  const auto session = make_session(host.get(), model.get(), llama({{"max_new_tokens", 100}}));
  append_rows(session.get(), {{1, 2, 3}});
  const auto generation =
      client::make<client::Generation>(kvplug_generation_start, session.get(), static_cast<kvplug_config*>(nullptr));
  int tokens = 0, finish = KVPLUG_FINISH_NONE;
  kvplug_event event{};
  event.struct_size = sizeof event;
  while (kvplug_generation_next(generation.get(), 0, &event, nullptr) == KVP_OK) {
    if (event.type == KVPLUG_EVENT_FINISH) finish = event.finish_reason;
    if (event.type == KVPLUG_EVENT_TOKEN && ++tokens == 3) {
      std::thread([&] {
        kvplug_generation_cancel(generation.get());
        kvplug_generation_cancel(generation.get());
      }).join();
    }
  }
  EXPECT_EQ(tokens, 3);
  EXPECT_EQ(finish, KVPLUG_FINISH_CANCELLED);
  const json result = json_from(kvplug_generation_result, generation.get());
  EXPECT_EQ(result[0]["sequences"][0]["finish_reason"], "cancelled");
  EXPECT_EQ(result[0]["sequences"][0]["token_ids"].size(), 3u);
  // The session goes on where it was.
  const Ids rest = answers(session.get(), 1)[0];
  Ids whole = result[0]["sequences"][0]["token_ids"].get<Ids>();
  whole.insert(whole.end(), rest.begin(), rest.end());
  whole.resize(24);
  EXPECT_EQ(whole, answers(host.get(), model.get(), llama(), {{1, 2, 3}})[0]);
}

TEST(Handles, AnyOrderOfReleaseIsFine) {
  const std::vector<Ids> want = [] {
    const auto host = new_host();
    const auto model = load_model(host.get(), llama());
    return answers(host.get(), model.get(), llama(), kBatch);
  }();
  auto host = new_host();
  auto model = load_model(host.get(), llama());
  auto session = make_session(host.get(), model.get(), llama());
  append_rows(session.get(), kBatch);
  model.reset();
  host.reset();
  EXPECT_EQ(answers(session.get(), kBatch.size()), want);
  auto generation =
      client::make<client::Generation>(kvplug_generation_start, session.get(), static_cast<kvplug_config*>(nullptr));
  session.reset();
  kvplug_event event{};
  event.struct_size = sizeof event;
  EXPECT_EQ(kvplug_generation_next(generation.get(), 0, &event, nullptr), KVP_OK);
  generation.reset();
  kvplug_host_release(nullptr);
  kvplug_session_release(nullptr);
  kvplug_generation_release(nullptr);
}

TEST(Handles, CacheMadeFirstBelongsToItsSession) {
  const auto host = new_host();
  const auto model = load_model(host.get(), llama());
  const kvp_layer* layers = nullptr;
  size_t n = 0, stride = 0;
  client::call(kvplug_model_layers, model.get(), &layers, &n, &stride);
  ASSERT_EQ(n, 2u);
  kvplug_cache_params params{};
  params.struct_size = sizeof params;
  params.batch = params.tokens = -1;
  params.device_type = KVP_DEVICE_CPU;
  params.dtype_code = KVP_DTYPE_FLOAT;
  params.dtype_bits = 32;
  const auto cache = client::make<client::Cache>(kvplug_cache_create, host.get(), layers, n, stride,
                                                 static_cast<kvplug_config*>(nullptr), &params);
  const auto config = make_config(host.get(), llama());
  auto session =
      client::make<client::Session>(kvplug_session_create_with_cache, model.get(), config.get(), cache.get());
  kvp_memory memory{};
  memory.struct_size = sizeof memory;
  EXPECT_EQ(kvplug_cache_memory(cache.get(), -1, &memory, nullptr), KVPLUG_E_BUSY) << "lent";
  append_rows(session.get(), kBatch);
  EXPECT_EQ(answers(session.get(), kBatch.size()), answers(host.get(), model.get(), llama(), kBatch));
  session.reset();
  EXPECT_EQ(kvplug_cache_memory(cache.get(), -1, &memory, nullptr), KVP_OK);

  // With a kind as well, neither would be right.
  const auto named = make_config(host.get(), llama({{"cache_implementation", "dynamic"}}));
  kvplug_session* none = nullptr;
  EXPECT_EQ(kvplug_session_create_with_cache(model.get(), named.get(), cache.get(), &none, nullptr), KVPLUG_E_CONFIG);
  EXPECT_EQ(none, nullptr);
}

// ---- the same cache in C, in Rust and in Go

class Languages : public ::testing::TestWithParam<const char*> {};

TEST_P(Languages, GiveTheTokensOfDynamic) {
  const auto host = new_host();
  const auto model = load_model(host.get(), llama());
  const json document = llama({{"cache_implementation", GetParam()}});
  for (const auto& rows : {std::vector<Ids>{Ids(kPrompt.begin(), kPrompt.end())}, kBatch}) {
    EXPECT_EQ(answers(host.get(), model.get(), document, rows), answers(host.get(), model.get(), llama(), rows));
  }
  EXPECT_EQ(answers(host.get(), model.get(), document, {Ids(kPrompt.begin(), kPrompt.end())})[0],
            Ids(kAnswer.begin(), kAnswer.end()));
}

INSTANTIATE_TEST_SUITE_P(Examples, Languages, ::testing::Values(KVPLUG_TEST_LANGUAGES),
                         [](const auto& test) { return std::string(test.param).substr(14); });

class Panics : public ::testing::TestWithParam<const char*> {};

TEST_P(Panics, AreAnErrorThatNamesThePlugin) {
  const auto host = new_host();
  const auto model = load_model(host.get(), llama());
  // Updates are counted over both layers: the fourth is in the second decode step.
  const json document = llama({{"cache_implementation", GetParam()}, {"cache_config", {{"panic_at", 3}}}});
  const auto session = make_session(host.get(), model.get(), document);
  append_rows(session.get(), {{1, 2, 3}});
  try {
    answers(session.get(), 1);
    ADD_FAILURE() << "no error";
  } catch (const client::Failure& failure) {
    EXPECT_NE(failure.text().find(GetParam()), std::string::npos) << failure.text();
    EXPECT_TRUE(failure.status() == KVPLUG_E_PLUGIN || failure.status() == KVP_POISONED) << failure.text();
  }
  // The host and the model are as good as before.
  EXPECT_EQ(answers(host.get(), model.get(), llama(), {Ids(kPrompt.begin(), kPrompt.end())})[0],
            Ids(kAnswer.begin(), kAnswer.end()));

  const RunFile file(llama_run("generation.cache_implementation = \"" + std::string(GetParam()) +
                               "\"\ngeneration.cache_config.panic_at = 3\n"));
  expect_error(kvplug_program({"run", file.path()}), 4, {GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Examples, Panics, ::testing::Values(KVPLUG_TEST_PANICKING),
                         [](const auto& test) { return std::string(test.param).substr(14); });

}  // namespace
}  // namespace kvplug::testing
