// SPDX-License-Identifier: Apache-2.0
// --print-effective-config: every key with its origin, and run again it is the same run.
#include "config/effective.h"

#include <gtest/gtest.h>

#include "config/schema.h"
#include "config_testing.h"

namespace kvplug::config {
namespace {

const char* const kRich = R"(
[run]
name = "a \"quoted\" name\twith\u0001 é"
seed = 9223372036854775807
[model]
path = "m"
[tokenizer]
chat_template_kwargs = { enable_thinking = false, "odd key" = [1, 2.5, "x"], nested = { a = 1 } }
[input]
jsonl = "more.jsonl"
limit = 9
[[prompts]]
id = "one"
text = "line one\nline two"
generation = { top_k = 7, max_new_tokens = 3, unset = ["top_p"] }
[[prompts]]
messages = [ { role = "user", content = "Hi \\ there" } ]
seed = 4
[generation]
do_sample = true
temperature = 0.1
top_p = 0.30000000000000004
epsilon_cutoff = 1e-5
eos_token_id = [2, 7]
stop_strings = ["\n\n", "#"]
bad_words_ids = [[1, 2], [3]]
cache_implementation = "quantized"
cache_config = { backend = "hqq", nbits = 4 }
unset = ["top_k"]
transformers_version = "5.23.0"
[memory]
max_host_bytes = "512MiB"
[[plugins.load]]
path = "x.so"
[output]
include = ["text", "plan"]
)";

void expect_same_run(const Run& a, const Run& b) {
  EXPECT_EQ(a.run, b.run);
  EXPECT_EQ(a.model.path, b.model.path);
  EXPECT_EQ(a.tokenizer, b.tokenizer);
  EXPECT_EQ(a.input, b.input);
  EXPECT_EQ(a.generation, b.generation);
  EXPECT_EQ(a.cache, b.cache);
  EXPECT_EQ(a.memory, b.memory);
  EXPECT_EQ(a.plugins, b.plugins);
  EXPECT_EQ(a.output, b.output);
  ASSERT_EQ(a.prompts.size(), b.prompts.size());
  for (std::size_t i = 0; i < a.prompts.size(); ++i) {
    EXPECT_EQ(a.prompts[i].id, b.prompts[i].id);
    EXPECT_EQ(a.prompts[i].text, b.prompts[i].text);
    EXPECT_EQ(a.prompts[i].messages, b.prompts[i].messages);
    EXPECT_EQ(a.prompts[i].seed, b.prompts[i].seed);
    EXPECT_EQ(a.prompts[i].generation, b.prompts[i].generation) << i;
  }
  EXPECT_EQ(a.digest, b.digest);
}

void expect_round_trip(const Config& config) {
  const std::string text = config.effective_toml();
  Config again;
  ASSERT_NO_THROW(again.merge_toml(text, "effective.toml", "/elsewhere")) << text;
  expect_same_run(config.resolve(), again.resolve());
  EXPECT_EQ(again.effective_json(), config.effective_json());
}

TEST(Effective, RoundTrips) {
  expect_round_trip(Config());
  expect_round_trip(from_toml("tokenizer.continue_final_message = true\n"));
  expect_round_trip(from_toml(kRich));
  Config config = from_toml(kRich);
  config.set("generation.top_p", "0.5");  // overrules the prompt's `unset` too
  config.set("generation.max_new_tokens", "6");
  config.set("run.name", "#=[]");
  const std::vector<std::pair<std::string, std::string>> environment = {{"KVPLUG_GENERATION__MIN_P", "0.25"}};
  config.merge_environment(environment);
  expect_round_trip(config);
}

TEST(Effective, RoundTripsEveryKey) {
  for (const Key& key : keys()) {
    if (key.example.empty() || key.path.find('[') != std::string_view::npos) continue;
    Config config;
    config.merge_toml(std::string(kHead) + std::string(key.path) + " = " + std::string(key.example), "x.toml", "/b");
    const std::string text = config.effective_toml();
    Config again;
    again.merge_toml(text, "y.toml", "/c");
    EXPECT_EQ(again.effective_json(), config.effective_json()) << text;
  }
}

TEST(Effective, EveryKeyWithItsOrigin) {
  Config config = from_toml("[generation]\nunset = [\"top_k\"]\ntop_p = 0.5\n");
  config.set_checkpoint(R"({"top_k": 20, "pad_token_id": 0})");
  const std::string text = config.effective_toml();
  for (const Key& key : keys()) {
    if (key.type == Type::kTable || key.path.find('[') != std::string_view::npos) continue;
    const std::string word(key.path.substr(key.path.rfind('.') + 1));
    EXPECT_TRUE(text.find("\n" + word + " = ") != std::string::npos ||
                text.find("\n# " + word + " ") != std::string::npos || text.starts_with(word))
        << key.path;
  }
  const auto line = [&](const std::string& start) {
    const std::size_t at = text.find("\n" + start);
    return at == std::string::npos ? "no line" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  };
  EXPECT_EQ(line("top_p = "), "top_p = 0.5                                 # run.toml:4:1");
  EXPECT_EQ(line("pad_token_id"), "pad_token_id = 0                            # generation_config.json:1:15");
  EXPECT_EQ(line("temperature"), "temperature = 1.0                           # default");
  EXPECT_EQ(line("# top_k"), "# top_k                                     # unset by run.toml:3:1");
  EXPECT_EQ(line("# max_length"), "# max_length                                # not set: 20");
  EXPECT_EQ(line("unset"), "unset = [\"top_k\"]                           # run.toml:3:1");
}

TEST(Effective, OriginsCannotBreakTheText) {
  Config config;
  config.set("run.name", "x", "evil\nrun.threads = 3");
  Config again;
  again.merge_toml(config.effective_toml(), "y.toml", "/c");
  EXPECT_EQ(again.resolve().run.threads, 0);
}

TEST(Effective, DigestDependsOnValuesOnly) {
  const std::string a = from_toml("generation.top_p = 0.5\n").resolve().digest;
  Config other;
  other.set("generation.top_p", "0.5");
  EXPECT_EQ(other.resolve().digest, a);
  EXPECT_NE(from_toml("generation.top_p = 0.25\n").resolve().digest, a);
  EXPECT_TRUE(a.starts_with("sha256:"));
}

TEST(Effective, Get) {
  const Config config = from_toml("generation.cache_config = { nbits = 4 }\nprompts = [ { text = \"a\" } ]\n");
  EXPECT_EQ(config.get("generation.cache_config.nbits")["value"], 4);
  EXPECT_EQ(config.get("generation.cache_config")["nbits"]["value"], 4);
  EXPECT_EQ(config.get("prompts")["[0].text"]["value"], "a");
  EXPECT_EQ(config.get("run")["task"]["value"], "generate");
  EXPECT_EQ(config.get("run.seed")["value"], nullptr);
  EXPECT_EQ(message_of([&] { config.get("generation.topp"); }),
            "generation.topp: unknown key\n  did you mean `generation.top_p`?");
}

}  // namespace
}  // namespace kvplug::config
