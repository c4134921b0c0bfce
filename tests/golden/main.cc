// SPDX-License-Identifier: Apache-2.0
// The golden suite, through the application API alone.
#include "golden/golden.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  using namespace kvplug::testing;
  try {
    const auto host = kvplug::client::make<kvplug::client::Host>(kvplug_host_create, nullptr);
    const json about = json_from(kvplug_host_describe, host.get(), 0u);
    const auto kinds = about.at("kinds").get<std::set<std::string>>();
    Tally tally;
    std::map<std::string, std::shared_ptr<Family>> families;
    for (const char* name : {"llama", "llama_rope3", "llama_sharded", "llama_bf16", "llama_fp16", "llama_chat", "qwen2",
                             "qwen3", "mistral", "gemma2", "llama4_text"}) {
      families[name] = std::make_shared<Family>(host.get(), name);
      add_generate_cases(tally, families[name], kinds);
    }
    add_logits_process_cases(tally, host.get());
    add_chat_cases(tally, host.get());
    add_error_cases(tally, families);
    tally.note("hidden states of forward/single and final_cache are inner values: the application cannot see them");
    const int failed = RUN_ALL_TESTS();
    return tally.close() ? failed : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
