// SPDX-License-Identifier: Apache-2.0
// bench and diff through the program: what their documents hold, what is exactly zero, what each refusal says.
#include <set>

#include "integration/run_file.h"

namespace kvplug::testing {
namespace {

// 40 ids, of which the last chunk of 16 is not full.
std::string ids_text() {
  json ids = json::array();
  for (int i = 0; i < 40; ++i) ids.push_back((i * 37 + 11) % 256);
  return ids.dump();
}

std::string run_with(const std::string& more) {
  return "config_version = 1\nmodel.path = \"" + model_folder("llama") +
         "\"\nprompts = [{ id = \"p\", input_ids = " + ids_text() + " }]\ngeneration.prefill_chunk_size = 16\n" + more;
}

json document_of(const std::vector<std::string>& words) {
  const Outcome got = kvplug_program(words);
  EXPECT_EQ(got.exit_code, 0) << got.err;
  return got.exit_code == 0 ? json::parse(got.out) : json();
}

void expect_keys(const json& value, const std::set<std::string>& keys, const std::string& what) {
  for (const std::string& key : keys) EXPECT_TRUE(value.contains(key)) << key << " in " << what << " " << value;
}

TEST(Diff, ExactCachesAreExactlyZero) {
  const RunFile file(
      run_with("[[diff.candidate]]\ncache_implementation = \"dynamic\"\n"
               "[[diff.candidate]]\ncache_implementation = \"static\"\n"
               "[[diff.candidate]]\ncache_implementation = \"offloaded\"\n"));
  const json document = document_of({"diff", file.path(), "--json"});
  ASSERT_TRUE(document.is_object());
  expect_keys(document,
              {"schema_version", "kvplug", "config_digest", "model", "baseline", "texts", "tokens", "positions",
               "chunk", "noise_floor", "candidates", "missed"},
              "the document");
  EXPECT_EQ(document["tokens"], 40);
  EXPECT_EQ(document["positions"], 39);
  EXPECT_EQ(document["chunk"], 16);
  ASSERT_EQ(document["candidates"].size(), 3u);
  for (const json& row : document["candidates"]) {
    expect_keys(row,
                {"cache", "cache_config", "kl", "top1_agreement", "perplexity", "ppl_ratio", "kv_bytes",
                 "kv_reserved_bytes", "first_divergence", "attention_drift"},
                "a candidate");
    EXPECT_EQ(row["kl"], json({{"mean", 0.0}, {"median", 0.0}, {"p99", 0.0}, {"max", 0.0}})) << row["cache"];
    EXPECT_EQ(row["top1_agreement"], 1.0);
    EXPECT_EQ(row["ppl_ratio"], 1.0);
    EXPECT_EQ(row["perplexity"], document["baseline"]["perplexity"]);
    EXPECT_TRUE(row["first_divergence"].is_null());
    EXPECT_EQ(row["attention_drift"]["layers"], json({0.0, 0.0}));
    EXPECT_TRUE(row["attention_drift"]["first_layer"].is_null());
  }
  EXPECT_NE(document["noise_floor"]["route"].get<std::string>().find("6 tokens at a time instead of 16"),
            std::string::npos);
  EXPECT_LT(document["noise_floor"]["kl"]["max"].get<double>(), 1e-8);
}

TEST(Diff, TheChunkChangesNoFigureButByRounding) {
  const RunFile file(run_with("[[diff.candidate]]\ncache_implementation = \"static\"\n"));
  const double in_chunks = document_of({"diff", file.path(), "--json"})["baseline"]["perplexity"];
  const double at_once = document_of({"diff", file.path(), "--json", "--chunk", "64"})["baseline"]["perplexity"];
  EXPECT_NEAR(in_chunks, at_once, 1e-5 * at_once);
}

TEST(Diff, NoCandidateMeansTheCacheOfTheRun) {
  const RunFile file(run_with("generation.cache_implementation = \"static\"\n"));
  EXPECT_EQ(document_of({"diff", file.path(), "--json"})["candidates"][0]["cache"], "static");
}

TEST(Diff, AMissedLimitIsExitCode7WithFigureAndLimit) {
  const RunFile file(run_with("diff.max_ppl_ratio = 0.5\n"));
  const Outcome got = kvplug_program({"diff", file.path(), "--json"});
  EXPECT_EQ(got.exit_code, 7) << got.err;
  const json document = json::parse(got.out);
  ASSERT_EQ(document["missed"].size(), 1u);
  EXPECT_EQ(document["missed"][0]["key"], "diff.max_ppl_ratio");
  EXPECT_EQ(document["missed"][0]["value"], 1.0);
  EXPECT_EQ(document["missed"][0]["limit"], 0.5);
  EXPECT_NE(got.err.find("missed: dynamic: diff.max_ppl_ratio is 1.0, the limit is 0.5"), std::string::npos) << got.err;
}

// Keys beyond the scale of the first tokens are NaN in fp8 as Transformers computes it.
TEST(Diff, WhatIsNotANumberIsTheWorst) {
  const RunFile file(
      run_with("diff.max_mean_kl = 1\n[[diff.candidate]]\n"
               "cache_implementation = \"quantized\"\ncache_config = { backend = \"fp8\", hf_compat = \"strict\" }\n"));
  const json row = json::parse(kvplug_program({"diff", file.path(), "--json"}).out)["candidates"][0];
  EXPECT_TRUE(row["kl"]["max"].is_null() && row["kl"]["p99"].is_null() && row["kl"]["mean"].is_null()) << row.dump();
  EXPECT_TRUE(row["attention_drift"]["first_layer"].is_number()) << row.dump();
  const Outcome text = kvplug_program({"diff", file.path()});
  EXPECT_EQ(text.exit_code, 7) << text.err;
  EXPECT_NE(text.out.find("NaN"), std::string::npos) << text.out;
  EXPECT_NE(text.err.find("diff.max_mean_kl is not a number, the limit is 1"), std::string::npos) << text.err;
}

TEST(Diff, LimitsThatAreKeptAreExitCode0) {
  const RunFile file(run_with("diff.max_mean_kl = 1e-9\ndiff.min_top1_agreement = 1.0\ndiff.max_ppl_ratio = 1.0\n"));
  EXPECT_EQ(document_of({"diff", file.path(), "--json"})["missed"], json::array());
}

TEST(Diff, ACacheThatFailsIsARowAndTheOthersGoOn) {
  const RunFile file(
      run_with("[[diff.candidate]]\ncache_implementation = \"offloaded\"\n"
               "cache_config = { disk_path = \"/proc/no/such/folder\" }\n"
               "[[diff.candidate]]\ncache_implementation = \"static\"\n"));
  const Outcome got = kvplug_program({"diff", file.path(), "--json"});
  EXPECT_NE(got.exit_code, 0);
  const json rows = json::parse(got.out)["candidates"];
  EXPECT_NE(rows[0]["error"]["message"], "");
  EXPECT_FALSE(rows[0].contains("kl"));
  EXPECT_EQ(rows[1]["top1_agreement"], 1.0);
  const Outcome text = kvplug_program({"diff", file.path()});
  EXPECT_NE(text.out.find("/proc/no/such/folder failed: "), std::string::npos) << text.out;
}

TEST(Diff, TextsWithNothingToScoreAreRefused) {
  for (const char* ids : {"[7]", "[]"}) {
    const RunFile file(llama_run("", ids));
    expect_error(kvplug_program({"diff", file.path()}), 2, {"diff.file", "tokens; a comparison needs 2"});
  }
  const RunFile empty("config_version = 1\nmodel.path = \"" + model_folder("llama_chat") +
                      "\"\ntokenizer.add_special_tokens = false\ndiff.file = \"empty.txt\"\n");
  write_text(empty.folder() / "empty.txt", "");
  expect_error(kvplug_program({"diff", empty.path()}), 2, {"has 0 tokens; a comparison needs 2"});
  const RunFile none("config_version = 1\nmodel.path = \"" + model_folder("llama") + "\"\n");
  expect_error(kvplug_program({"diff", none.path()}), 2, {"diff.file", "nothing to score"});
  const RunFile missing("config_version = 1\nmodel.path = \"" + model_folder("llama_chat") +
                        "\"\ndiff.file = \"none.txt\"\n");
  expect_error(kvplug_program({"diff", missing.path()}), 2, {"none.txt"});
}

TEST(Diff, IdsOutsideOfTheVocabularyAreRefused) {
  const RunFile file(llama_run("", "[1, 2, 256]"));
  expect_error(kvplug_program({"diff", file.path()}), 2, {"id 256", "0 to 255"});
}

TEST(Diff, EveryFormHoldsTheSameRows) {
  const RunFile file(run_with("[[diff.candidate]]\ncache_implementation = \"static\"\n"));
  const Outcome text = kvplug_program({"diff", file.path()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("noise floor"), std::string::npos);
  EXPECT_NE(text.out.find("100.00 %"), std::string::npos) << text.out;
  const Outcome csv = kvplug_program({"diff", file.path(), "-o", "csv"});
  EXPECT_EQ(csv.out.rfind("cache,cache_config,row,kl_mean,", 0), 0u) << csv.out;
  EXPECT_NE(csv.out.find("\nstatic,{},candidate,0.0,0.0,0.0,0.0,1.0,"), std::string::npos) << csv.out;
  const Outcome md = kvplug_program({"diff", file.path(), "-o", "md"});
  EXPECT_EQ(md.out.rfind("| cache | mean KL |", 0), 0u) << md.out;
  const Outcome lines = kvplug_program({"diff", file.path(), "-o", "jsonl"});
  EXPECT_EQ(json::parse(lines.out)["cache"], "static");
}

std::string bench_run(const std::string& more = "") {
  return "config_version = 1\nmodel.path = \"" + model_folder("llama") +
         "\"\nrun.seed = 1\n[bench]\nprompt_tokens = [8]\nnew_tokens = [4]\ndepth = [0, 40]\nrepetitions = 3\n" + more;
}

TEST(Bench, TheDocumentHoldsEveryShapeOfEveryCache) {
  const RunFile file(
      bench_run("[[bench.cache]]\ncache_implementation = \"dynamic\"\n"
                "[[bench.cache]]\ncache_implementation = \"static\"\n"
                "[[bench.cache]]\ncache_implementation = \"offloaded\"\n"));
  const json document = document_of({"bench", file.path(), "--json"});
  ASSERT_TRUE(document.is_object());
  expect_keys(document, {"schema_version", "kvplug", "config_digest", "model", "machine", "weight_bytes", "runs"},
              "the document");
  EXPECT_GT(document["machine"]["read_bytes_per_s"].get<double>(), 1e8);
  ASSERT_EQ(document["runs"].size(), 12u);
  std::set<std::string> shapes;
  for (const json& row : document["runs"]) {
    expect_keys(
        row,
        {"cache", "cache_config", "dtype", "threads", "batch", "depth", "prompt_tokens", "new_tokens", "tokens_per_s",
         "kv_bytes", "kv_reserved_bytes", "rss_bytes", "step_bytes", "roofline_tokens_per_s", "mbu"},
        "a row");
    ASSERT_FALSE(row.contains("error")) << row;
    shapes.insert(row["cache"].dump() + row["depth"].dump() + row["prompt_tokens"].dump() + row["new_tokens"].dump());
    const json& rate = row["tokens_per_s"];
    EXPECT_EQ(rate["n"], 3);
    EXPECT_LE(rate["min"].get<double>(), rate["median"].get<double>());
    EXPECT_LE(rate["median"].get<double>(), rate["max"].get<double>());
    EXPECT_GT(rate["min"].get<double>(), 0);
    const int64_t tokens =
        row["depth"].get<int64_t>() + row["prompt_tokens"].get<int64_t>() + row["new_tokens"].get<int64_t>();
    // 2 layers, K and V, 2 heads of 16 float32.
    if (row["cache"] == "dynamic") {
      EXPECT_EQ(row["kv_bytes"], tokens * 2 * 2 * 2 * 16 * 4) << row;
    }
    EXPECT_LE(row["kv_bytes"], row["kv_reserved_bytes"]);
    EXPECT_EQ(row["mbu"].is_null(), row["new_tokens"] == 0);
  }
  EXPECT_EQ(shapes.size(), 12u);
}

TEST(Bench, LettersOfTheCommandLineWinOverTheFile) {
  const RunFile file(bench_run());
  const json runs =
      document_of({"bench", file.path(), "--json", "-p", "0", "-n", "2,3", "-d", "5", "-r", "1", "-b", "2"})["runs"];
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0]["new_tokens"], 2);
  EXPECT_EQ(runs[1]["new_tokens"], 3);
  EXPECT_EQ(runs[1]["depth"], 5);
  EXPECT_EQ(runs[1]["batch"], 2);
  EXPECT_EQ(runs[1]["tokens_per_s"]["n"], 1);
}

TEST(Bench, EveryFormHoldsTheSameRows) {
  const RunFile file(bench_run());
  const Outcome text = kvplug_program({"bench", file.path()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.err, "") << "no progress where standard error is no terminal";
  for (const char* word : {"pp8 ", "tg4 ", "pp8 @ 40", "tg4 @ 40", "GB/s", "MBU"})
    EXPECT_NE(text.out.find(word), std::string::npos) << word << " in\n" << text.out;
  const Outcome csv = kvplug_program({"bench", file.path(), "-o", "csv"});
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 5);
  const Outcome lines = kvplug_program({"bench", file.path(), "-o", "jsonl"});
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 4);
  const Outcome md = kvplug_program({"bench", file.path(), "-o", "md"});
  EXPECT_EQ(md.out.rfind("| cache | test |", 0), 0u) << md.out;
}

TEST(Bench, ACacheThatFailsIsARowAndTheOthersGoOn) {
  const RunFile file(
      bench_run("[[bench.cache]]\ncache_implementation = \"offloaded\"\n"
                "cache_config = { disk_path = \"/proc/no/such/folder\" }\n"
                "[[bench.cache]]\ncache_implementation = \"dynamic\"\n"));
  const Outcome got = kvplug_program({"bench", file.path(), "--json"});
  EXPECT_NE(got.exit_code, 0);
  const json runs = json::parse(got.out)["runs"];
  int failed = 0;
  for (const json& row : runs) {
    EXPECT_EQ(row.contains("error"), row["cache"] == "offloaded") << row;
    failed += row.contains("error");
  }
  EXPECT_EQ(failed, 4);
}

TEST(Bench, ShapesBeyondTheModelAreRefused) {
  const RunFile file(bench_run());
  expect_error(kvplug_program({"bench", file.path(), "-d", "125"}), 2, {"bench.depth", "133", "128"});
  expect_error(kvplug_program({"bench", file.path(), "-p", "0", "-n", "0"}), 2, {"nothing to measure"});
}

TEST(Measure, KeysAreCheckedLikeAllOthers) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"[bench]\nrepetition = 2\n", {"bench.repetition: unknown key", "did you mean `repetitions`?"}},
      {"[bench]\ndepth = [-1]\n", {"bench.depth", "out of range"}},
      {"[bench]\ndepth = []\n", {"bench.depth", "an empty list"}},
      {"[[bench.cache]]\ncache_config = { }\n", {"`cache_implementation` is missing"}},
      {"[[bench.cache]]\ncache_implementation = \"static\"\ncache_config = { nbits = 4 }\n", {"cache_config.nbits"}},
      {"[[diff.candidate]]\ncache_implementation = \"dinamic\"\n", {"diff.candidate[0].cache_implementation"}},
      {"[diff]\nmin_top1_agreement = 98\n", {"diff.min_top1_agreement", "expected 0.0 to 1.0"}},
      {"[diff]\ntokens = 1\n", {"diff.tokens", "expected 2 to"}},
      {"[output]\nformat = \"csv\"\n", {"output.format", "a form of bench and diff"}},
  };
  for (const auto& [text, words] : cases) {
    const RunFile file(llama_run(text));
    expect_error(kvplug_program({"run", file.path()}), 2, words);
  }
}

TEST(Measure, RunDoesTheTaskThatTheFileNames) {
  const RunFile diff(run_with("run.task = \"diff\"\n"));
  EXPECT_TRUE(document_of({"run", diff.path(), "--json"}).contains("noise_floor"));
  std::string text = bench_run();
  text.replace(text.find("run.seed = 1"), 12, "run = { seed = 1, task = \"bench\" }");
  const RunFile named(text);
  EXPECT_TRUE(document_of({"run", named.path(), "--json"}).contains("runs"));
}

}  // namespace
}  // namespace kvplug::testing
