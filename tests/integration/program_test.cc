// SPDX-License-Identifier: Apache-2.0
// The program from outside: what it prints where, in which form, and with which exit code.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "integration/run_file.h"
#include "support/safetensors.h"

namespace kvplug::testing {
namespace {

std::set<std::string> keys_of(const json& object) {
  std::set<std::string> out;
  for (const auto& [key, value] : object.items()) out.insert(key);
  return out;
}

void expect_keys(const json& object, const std::set<std::string>& keys, const char* what) {
  const auto have = keys_of(object);
  for (const std::string& key : keys) EXPECT_TRUE(have.contains(key)) << key << " is missing in " << what;
}

std::string text_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(Program, JsonDocumentHasThePromisedKeys) {
  const RunFile file(llama_run());
  const Outcome got = kvplug_program({"run", file.path(), "--json"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.err, "");
  EXPECT_EQ(std::count(got.out.begin(), got.out.end(), '\n'), 1);
  const json document = json::parse(got.out);
  expect_keys(document,
              {"schema_version", "kvplug", "config_digest", "seed", "model", "cache", "results", "timings", "notices"},
              "the document");
  EXPECT_EQ(document["schema_version"], 1);
  EXPECT_EQ(document["config_digest"].get<std::string>().rfind("sha256:", 0), 0u);
  EXPECT_TRUE(document["seed"].is_number_integer()) << "a fresh seed is told";
  const json& model = document["model"];
  expect_keys(model, {"path", "model_type", "dtype", "device", "layers", "parameters"}, "model");
  EXPECT_EQ(model["model_type"], "llama");
  EXPECT_EQ(model["dtype"], "float32");
  EXPECT_EQ(model["device"], "cpu");
  EXPECT_EQ(model["layers"], 2);
  const json& cache = document["cache"];
  expect_keys(cache, {"implementation", "stack", "tokens", "bytes", "counters"}, "cache");
  EXPECT_EQ(cache["implementation"], "dynamic");
  ASSERT_EQ(cache["stack"].size(), 1u);
  EXPECT_EQ(cache["stack"][0]["layers"], json({0, 1}));
  EXPECT_EQ(cache["stack"][0]["kind"], "full_attention");
  EXPECT_EQ(cache["stack"][0]["plugin"], "dynamic");
  EXPECT_EQ(cache["stack"][0]["attend"], "fused");
  EXPECT_EQ(cache["tokens"], kPrompt.size() + 23);
  expect_keys(cache["bytes"], {"planned", "used", "reserved", "unquantized", "by_tier"}, "bytes");
  EXPECT_EQ(cache["bytes"]["planned"], cache["bytes"]["reserved"]);
  EXPECT_LE(cache["bytes"]["used"], cache["bytes"]["reserved"]);
  expect_keys(cache["bytes"]["by_tier"], {"device", "pinned", "host", "file"}, "by_tier");
  expect_keys(cache["counters"],
              {"fused_attend_calls", "view_attend_calls", "dequantized_tokens", "requantized_tokens", "packed_tokens",
               "prefetch_hits", "prefetch_stalls", "bytes_moved", "oom_fallbacks"},
              "counters");
  EXPECT_EQ(cache["counters"]["fused_attend_calls"], 2 * 24);
  ASSERT_EQ(document["results"].size(), 1u);
  const json& result = document["results"][0];
  expect_keys(result, {"id", "prompt_tokens", "sequences", "usage", "timings"}, "a result");
  EXPECT_EQ(result["id"], "p");
  EXPECT_EQ(result["prompt_tokens"], kPrompt.size());
  ASSERT_EQ(result["sequences"].size(), 1u);
  expect_keys(result["sequences"][0], {"token_ids", "text", "score", "finish_reason"}, "a sequence");
  EXPECT_EQ(result["sequences"][0]["token_ids"], kAnswer);
  EXPECT_TRUE(result["sequences"][0]["score"].is_null());
  EXPECT_EQ(result["sequences"][0]["finish_reason"], "length");
  EXPECT_EQ(result["usage"], json({{"prompt_tokens", 8}, {"reused_tokens", 0}, {"new_tokens", 24}}));
  expect_keys(result["timings"], {"prefill_s", "decode_s", "first_token_s"}, "timings of a result");
  expect_keys(document["timings"], {"load_s", "prefill_tokens_per_s", "decode_tokens_per_s"}, "timings");
}

TEST(Program, TextIsStreamedToStandardOutput) {
  const std::vector<std::string> line{"generate", "-m", model_folder("llama_chat"), "-p",  "The quick brown fox.",
                                      "-n",       "12", "--chat-template",          "none"};
  const Outcome text = kvplug_program(line);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  std::vector<std::string> json_line = line;
  json_line.emplace_back("--json");
  const Outcome document = kvplug_program(json_line);
  ASSERT_EQ(document.exit_code, 0) << document.err;
  EXPECT_EQ(text.out, json::parse(document.out)["results"][0]["sequences"][0]["text"].get<std::string>() + "\n");
}

TEST(Program, IdsComeBesideTheTextWhenAskedFor) {
  const std::vector<std::string> line{"generate", "-m", model_folder("llama_chat"), "-p", "The quick", "-n", "5"};
  std::vector<std::string> with_ids = line;
  with_ids.insert(with_ids.end(), {"--set", "output.include=[\"text\", \"token_ids\"]"});
  const Outcome text = kvplug_program(line), both = kvplug_program(with_ids);
  ASSERT_EQ(both.exit_code, 0) << both.err;
  ASSERT_EQ(both.out.rfind(text.out, 0), 0u) << "the text once, then the ids";
  EXPECT_EQ(json::parse(both.out.substr(text.out.size())).size(), 5u);
}

TEST(Program, JsonLinesIsOneResultALine) {
  const TempFolder folder;
  write_text(folder / "prompts.jsonl",
             "{\"prompt\": \"Hello\"}\n{\"prompt\": \"The quick brown fox\"}\n{\"prompt\": \"a\"}\n");
  const std::vector<std::string> line{
      "generate", "-m",   model_folder("llama_chat"), "--jsonl", folder / "prompts.jsonl", "-n", "5",
      "--format", "jsonl"};
  const Outcome one = kvplug_program(line);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  std::vector<json> results;
  std::istringstream lines(one.out);
  for (std::string each; std::getline(lines, each);) results.push_back(json::parse(each));
  ASSERT_EQ(results.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(results[i]["id"], std::to_string(i));

  // Together the rows give what they give alone.
  std::vector<std::string> batch = line;
  batch.insert(batch.end(), {"--batch-size", "3"});
  const Outcome together = kvplug_program(batch);
  ASSERT_EQ(together.exit_code, 0) << together.err;
  std::istringstream others(together.out);
  for (size_t i = 0; i < 3; ++i) {
    std::string each;
    ASSERT_TRUE(std::getline(others, each));
    EXPECT_EQ(json::parse(each)["sequences"], results[i]["sequences"]) << i;
  }
}

TEST(Program, ResultGoesToAFileAndReplacesNothingUnasked) {
  const RunFile file(llama_run());
  const std::string path = file.folder() / "result.json";
  const std::vector<std::string> line{"run", file.path(), "--json", "-o", path};
  const Outcome first = kvplug_program(line);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out, "");
  const std::string written = text_of_file(path);
  EXPECT_EQ(json::parse(written)["results"][0]["sequences"][0]["token_ids"], kAnswer);

  const Outcome second = kvplug_program(line);
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_NE(second.err.find("exists"), std::string::npos) << second.err;
  EXPECT_EQ(text_of_file(path), written);

  std::vector<std::string> replace = line;
  replace.insert(replace.end(), {"--set", "output.overwrite=true", "--set", "generation.max_new_tokens=3"});
  ASSERT_EQ(kvplug_program(replace).exit_code, 0);
  EXPECT_EQ(json::parse(text_of_file(path))["results"][0]["usage"]["new_tokens"], 3);
}

TEST(Program, LinksAndNeighboursSurviveAResult) {
  const RunFile file(llama_run());
  const std::string target = file.folder() / "target.txt", link = file.folder() / "link.txt";
  const std::string neighbour = target + ".partial";
  write_text(target, "old");
  write_text(neighbour, "precious");
  std::filesystem::create_symlink(target, link);
  const Outcome got = kvplug_program({"run", file.path(), "-o", link, "--set", "output.overwrite=true"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(text_of_file(target), json(kAnswer).dump() + "\n");
  EXPECT_EQ(text_of_file(neighbour), "precious");
}

TEST(Program, OneBadPromptSpoilsNoBatch) {
  std::string text = llama_run("run.on_prompt_error = \"continue\"\ninput.batch_size = 3\n");
  const std::string good = "{ id = \"p\", input_ids = " + json(kPrompt).dump() + " }";
  text.replace(text.find(good), good.size(),
               good + ", { id = \"bad\", input_ids = [1, 999] }, { id = \"q\", input_ids = [1, 2] }");
  const RunFile file(text);
  const Outcome got = kvplug_program({"run", file.path(), "--json"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  const json results = json::parse(got.out)["results"];
  EXPECT_EQ(results[0]["sequences"][0]["token_ids"], json(kAnswer));
  EXPECT_NE(results[1]["error"]["message"].get<std::string>().find("999"), std::string::npos);
  EXPECT_EQ(results[2]["usage"]["new_tokens"], 24);
}

TEST(Program, FailedRunLeavesNoFile) {
  const RunFile file(llama_run("", "[1, 2, 999]"));
  const std::string path = file.folder() / "result.json", logits = file.folder() / "logits.safetensors";
  EXPECT_EQ(kvplug_program({"run", file.path(), "-o", path, "--logits-path", logits}).exit_code, 2);
  for (const auto& entry : std::filesystem::directory_iterator(file.folder().path())) {
    EXPECT_EQ(entry.path().string(), file.path()) << "left behind";
  }
}

TEST(Program, LogitsFileHoldsOneTensorAPrompt) {
  const RunFile file(llama_run());
  const std::string path = file.folder() / "logits.safetensors";
  ASSERT_EQ(kvplug_program({"run", file.path(), "--json", "--logits-path", path}).exit_code, 0);
  const auto tensors = read_safetensors(path);
  ASSERT_TRUE(tensors.contains("p.0"));
  EXPECT_EQ(tensors.at("p.0").shape, (std::vector<int64_t>{24, 256}));
  const std::vector<float> logits = tensors.at("p.0").floats();
  for (size_t t = 0; t < kAnswer.size(); ++t) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(t * 256);
    EXPECT_EQ(std::max_element(row, row + 256) - row, kAnswer[t]) << "step " << t;
  }
}

TEST(Program, FlagBeatsEnvironmentBeatsFile) {
  const RunFile file(llama_run());
  const auto new_tokens = [&](std::vector<std::string> more, const ProgramOptions& options) {
    std::vector<std::string> line{"run", file.path(), "--json"};
    line.insert(line.end(), more.begin(), more.end());
    const Outcome got = kvplug_program(line, options);
    EXPECT_EQ(got.exit_code, 0) << got.err;
    return json::parse(got.out)["results"][0]["usage"]["new_tokens"].get<int>();
  };
  ProgramOptions environment;
  environment.environment["KVPLUG_GENERATION__MAX_NEW_TOKENS"] = "5";
  EXPECT_EQ(new_tokens({}, {}), 24);
  EXPECT_EQ(new_tokens({}, environment), 5);
  EXPECT_EQ(new_tokens({"-n", "3"}, environment), 3);
  EXPECT_EQ(new_tokens({"--set", "generation.max_new_tokens=2"}, environment), 2);
  EXPECT_EQ(new_tokens({"--max_new_tokens=4"}, environment), 4);

  ProgramOptions unknown;
  unknown.environment["KVPLUG_GENERATION__TOPP"] = "0.5";
  expect_error(kvplug_program({"run", file.path()}, unknown), 2, {"KVPLUG_GENERATION__TOPP", "top_p"});
}

TEST(Program, EffectiveConfigGivesTheSameRun) {
  const RunFile file(llama_run("run.seed = 5\ngeneration.do_sample = true\ngeneration.temperature = 0.8\n"));
  const Outcome printed =
      kvplug_program({"run", file.path(), "--set", "generation.top_k=7", "--print-effective-config"});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_NE(printed.out.find("run.toml:"), std::string::npos) << "origins are told";
  const RunFile again(printed.out, "effective.toml");
  const Outcome first = kvplug_program({"run", file.path(), "--set", "generation.top_k=7", "--json"});
  const Outcome second = kvplug_program({"run", again.path(), "--json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const json a = json::parse(first.out), b = json::parse(second.out);
  EXPECT_EQ(a["results"][0]["sequences"], b["results"][0]["sequences"]);
  EXPECT_EQ(a["config_digest"], b["config_digest"]);
  const Outcome reprinted = kvplug_program({"run", again.path(), "--print-effective-config"});
  EXPECT_EQ(reprinted.exit_code, 0);
}

TEST(Program, PlanReadsNoWeights) {
  const RunFile file(llama_run());
  const Outcome text = kvplug_program({"plan", file.path()});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* word : {"weights", "K/V", "total", "fits"})
    EXPECT_NE(text.out.find(word), std::string::npos) << word;
  const Outcome got = kvplug_program({"plan", file.path(), "--json"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  const json plan = json::parse(got.out);
  expect_keys(plan, {"schema_version", "rows", "totals", "fits"}, "the plan");
  EXPECT_EQ(plan["fits"], true);
  for (const json& row : plan["rows"]) {
    expect_keys(row, {"layer", "kind", "plugin", "tier", "purpose", "bytes"}, "a row");
  }
  // The promise is kept: the run takes what was planned.
  const json run = json::parse(kvplug_program({"run", file.path(), "--json", "--set", "memory.plan=exact"}).out);
  EXPECT_EQ(run["cache"]["bytes"]["reserved"], plan["cache_bytes"]);
}

// Each batch makes a cache of its own: planned is the one that holds most, never the most rows times the longest.
TEST(Program, PlanOfUnequalBatchesIsThatOfTheLargest) {
  const auto prompts = [](int rows, int tokens) {
    std::string out;
    for (int i = 0; i < rows; ++i) out += "{ input_ids = " + json(std::vector<int>(tokens, 10)).dump() + " }, ";
    return out;
  };
  const auto answer = [](const char* command, const char* kind, int batch_size, const std::string& given) {
    const RunFile file("config_version = 1\nmodel.path = \"" + model_folder("llama") + "\"\nprompts = [" + given +
                       "]\ninput.batch_size = " + std::to_string(batch_size) +
                       "\ngeneration = { max_new_tokens = 24, eos_token_id = [], cache_implementation = \"" + kind +
                       "\" }\nmemory.plan = \"exact\"\n");
    const Outcome got = kvplug_program({command, file.path(), "--json"});
    EXPECT_EQ(got.exit_code, 0) << got.err;
    return json::parse(got.out);
  };
  for (const char* kind : {"dynamic", "static"}) {
    for (const auto& [all, largest, rows, tokens] :
         {std::tuple{prompts(3, 8) + prompts(1, 80), prompts(3, 8), 3, 31},       // 3 pages of 64 tokens in a layer, 2
          std::tuple{prompts(3, 8) + prompts(2, 80), prompts(2, 80), 2, 103}}) {  // 3, 4
      const json plan = answer("plan", kind, 3, all), alone = answer("plan", kind, 3, largest);
      for (const char* same : {"rows", "totals", "cache_bytes", "peak_host_bytes", "batch", "tokens"}) {
        EXPECT_EQ(plan[same], alone[same]) << kind << ": " << same;
      }
      EXPECT_EQ(plan["batch"], rows);
      EXPECT_EQ(plan["tokens"], tokens);
      EXPECT_EQ(answer("run", kind, 3, largest)["cache"]["bytes"]["reserved"], plan["cache_bytes"]);
    }
    const std::string last = prompts(2, 80);  // whose bytes the run tells
    EXPECT_EQ(answer("run", kind, 3, prompts(3, 8) + last)["cache"]["bytes"]["reserved"],
              answer("plan", kind, 3, last)["cache_bytes"]);
  }
  // 5 pages, and views of 320 tokens on the way; 6 pages, and views of 195.
  const json plan = answer("plan", "dynamic", 5, prompts(5, 41) + prompts(3, 42));
  EXPECT_EQ(plan["cache_bytes"], answer("plan", "dynamic", 5, prompts(3, 42))["cache_bytes"]);
  EXPECT_EQ(plan["peak_host_bytes"], answer("plan", "dynamic", 5, prompts(5, 41))["peak_host_bytes"]);
  EXPECT_GT(plan["peak_host_bytes"], answer("plan", "dynamic", 5, prompts(3, 42))["peak_host_bytes"]);
}

TEST(Program, AnswersGoWhereTheFlagSays) {
  const RunFile file(llama_run());
  for (const char* command : {"plan", "explain"}) {
    const std::string path = file.folder() / (std::string(command) + ".json");
    const Outcome got = kvplug_program({command, file.path(), "--json", "-o", path});
    ASSERT_EQ(got.exit_code, 0) << got.err;
    EXPECT_EQ(got.out, "");
    EXPECT_EQ(json::parse(text_of_file(path))["schema_version"], 1);
  }
}

TEST(Program, AnswerThatCannotBeWrittenIsAFailure) {
  const RunFile file(llama_run());
  const std::string program = std::string(KVPLUG_TEST_BUILD) + "/bin/kvplug";
  for (const std::string& words : {"check " + file.path(), "check --json " + file.path(), std::string("--help"),
                                   "plan " + file.path(), std::string("plugin list")}) {
    const Outcome got = run_command_line({"/bin/sh", "-c", program + " " + words + " >&-"});
    EXPECT_EQ(got.exit_code, 1) << words;
    EXPECT_NE(got.err.find("standard output"), std::string::npos) << words << ": " << got.err;
  }
}

TEST(Program, ErrorsNameTheFlag) {
  const RunFile file(llama_run());
  expect_error(kvplug_program({"run", file.path(), "--top-p", "2"}), 2, {"--top-p: generation.top_p: 2"});
  expect_error(kvplug_program({"run", file.path(), "-n", "0"}), 2, {"--max-new-tokens: generation.max_new_tokens: 0"});
  expect_error(kvplug_program({"run", file.path(), "--set", "generation.top_p=2"}), 2, {"--set: generation.top_p: 2"});
}

TEST(Program, PlanThatDoesNotFitIsFive) {
  const RunFile file(llama_run("memory.max_host_bytes = \"100KiB\"\n"));
  EXPECT_EQ(kvplug_program({"plan", file.path()}).exit_code, 5);
  const Outcome run = kvplug_program({"run", file.path()});
  expect_error(run, 5, {"needs", "max_host_bytes"});
}

TEST(Program, ExplainTellsOriginsAndPlacement) {
  const RunFile file(llama_run());
  const Outcome text = kvplug_program({"explain", file.path()});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* word : {"dynamic", "fused", "max_new_tokens", "run.toml:"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << " in " << text.out;
  }
  const json explain = json::parse(kvplug_program({"explain", file.path(), "--json"}).out);
  EXPECT_EQ(explain["cache"]["layers"].size(), 2u);
  EXPECT_EQ(explain["settings"]["generation"]["max_new_tokens"]["value"], 24);
}

TEST(Program, ADeviceThatCannotBeUsedIsSaidWithTheWayOut) {
  const RunFile file(llama_run("model.device = \"cuda\"\n"));
  const Outcome got = kvplug_program({"run", file.path()});
  if (got.exit_code != 6) GTEST_SKIP() << "this machine has LibTorch's CUDA library: " << got.err;
  expect_error(got, 6, {"libtorch_cuda.so", "pip install torch", "model.device"});
}

TEST(Program, CheckJudgesEveryFile) {
  const RunFile good(llama_run()), bad(llama_run("generation.top_q = 3\n"), "bad.toml");
  EXPECT_EQ(kvplug_program({"check", good.path()}).exit_code, 0);
  const Outcome got = kvplug_program({"check", bad.path(), good.path()});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_NE(got.out.find("good"), std::string::npos) << "the second file is checked too";
  EXPECT_NE(got.err.find("top_q"), std::string::npos);
  EXPECT_NE(got.err.find("did you mean"), std::string::npos);
}

TEST(Program, DoctorAndPluginsTellWhatIsThere) {
  const Outcome doctor = kvplug_program({"doctor", "--json"});
  ASSERT_EQ(doctor.exit_code, 0) << doctor.err;
  const json about = json::parse(doctor.out);
  EXPECT_FALSE(about["libraries"].empty());
  EXPECT_FALSE(about["machine"].empty());

  const Outcome list = kvplug_program({"plugin", "list"});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_NE(list.out.find("dynamic"), std::string::npos);
  const Outcome info = kvplug_program({"plugin", "info", "dynamic"});
  EXPECT_EQ(info.exit_code, 0);
  EXPECT_NE(info.out.find("kvp.cache/1"), std::string::npos);
  expect_error(kvplug_program({"plugin", "info", "dinamic"}), 2, {"dinamic", "dynamic"});
}

TEST(Program, VersionNamesBothVersions) {
  const Outcome got = kvplug_program({"--version"});
  EXPECT_EQ(got.exit_code, 0);
  EXPECT_NE(got.out.find("kvplug 0."), std::string::npos) << got.out;
  EXPECT_NE(got.out.find("ABI"), std::string::npos) << got.out;
}

TEST(Program, HelpAndPluginListAreQuick) {
  for (const std::vector<std::string>& line : {std::vector<std::string>{"--help"}, {"plugin", "list"}}) {
    auto best = std::chrono::steady_clock::duration::max();
    for (int i = 0; i < 5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(kvplug_program(line).exit_code, 0);
      best = std::min(best, std::chrono::steady_clock::now() - start);
    }
    EXPECT_LT(std::chrono::duration<double>(best).count(), 0.25) << line[0] << ": is LibTorch loaded for it?";
  }
}

TEST(Program, InterruptWritesWhatThereIs) {
  // The model's 128 positions are a few milliseconds: many prompts make the run long enough to be met in the middle.
  std::string text = "config_version = 1\nmodel.path = \"" + model_folder("llama") +
                     "\"\ngeneration.max_new_tokens = 100\ngeneration.eos_token_id = []\n";
  for (int i = 0; i < 3000; ++i) text += "[[prompts]]\ninput_ids = [1, 2, 3]\n";
  const RunFile file(text);
  const std::string path = file.folder() / "result.json";
  // The progress line is wiped away by the first token.
  ProgramOptions options;
  options.signal_when = [](const std::string&, const std::string& err) {
    return err.find("\r" + std::string(60, ' ')) != std::string::npos ? SIGINT : 0;
  };
  const Outcome got =
      kvplug_program({"run", file.path(), "--json", "-o", path, "--set", "output.progress=always"}, options);
  EXPECT_EQ(got.exit_code, 130) << got.err;
  const std::string written = text_of_file(path);
  ASSERT_FALSE(written.empty()) << got.err;
  const json document = json::parse(written);
  ASSERT_EQ(document["results"].size(), 3000u);
  EXPECT_TRUE(std::any_of(document["results"].begin(), document["results"].end(),
                          [](const json& result) { return result["sequences"][0]["finish_reason"] == "cancelled"; }));
}

TEST(Program, ErrorsAreOneJsonLineWhenAskedFor) {
  const RunFile file(llama_run("generation.max_new_token = 3\n"));
  const Outcome got = kvplug_program({"run", file.path(), "--json"});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_EQ(got.out, "");
  EXPECT_EQ(std::count(got.err.begin(), got.err.end(), '\n'), 1) << got.err;
  const json error = json::parse(got.err)["error"];
  EXPECT_EQ(error["code"], "config");
  EXPECT_NE(error["where"].get<std::string>().find("run.toml:6"), std::string::npos) << error;
  EXPECT_NE(error["where"].get<std::string>().find("generation.max_new_token"), std::string::npos) << error;
  EXPECT_NE(error["hint"].get<std::string>().find("max_new_tokens"), std::string::npos) << error;
  EXPECT_FALSE(error["message"].get<std::string>().empty());
}

}  // namespace
}  // namespace kvplug::testing
