// SPDX-License-Identifier: Apache-2.0
// What is wrong with what a user gives, one test each: the right exit code, a message that names the thing, and nothing
// half-written. All through the program.
#include <unistd.h>

#include <cstring>
#include <functional>

#include "integration/run_file.h"

namespace kvplug::testing {
namespace {

namespace fs = std::filesystem;

// A copy of a model that a test may spoil, and a run of it.
class SpoiltModel {
 public:
  explicit SpoiltModel(const std::string& name = "llama") {
    fs::create_directory(path());
    for (const auto& entry : fs::directory_iterator(model_folder(name)))
      fs::copy_file(entry, path() / entry.path().filename());
    for (const auto& entry : fs::directory_iterator(path())) fs::permissions(entry, fs::perms::owner_all);
  }
  fs::path path() const { return folder_.path() / "model"; }
  Outcome run() const {
    write_text(folder_ / "run.toml", "config_version = 1\nmodel.path = \"" + path().string() +
                                         "\"\nprompts = [{ input_ids = [1, 2, 3] }]\ngeneration.max_new_tokens = 2\n");
    Outcome got = kvplug_program({"run", folder_ / "run.toml", "-o", folder_ / "result.txt"});
    EXPECT_FALSE(fs::exists(folder_ / "result.txt"));
    EXPECT_FALSE(fs::exists(folder_ / "result.txt.partial"));
    return got;
  }
  std::string read(const char* file) const {
    std::ifstream in(path() / file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  // Rewrites the JSON of config.json.
  void edit_config(const std::function<void(json&)>& edit) const {
    json config = json::parse(read("config.json"));
    edit(config);
    write_text(path() / "config.json", config.dump());
  }
  // Rewrites the header of model.safetensors, and keeps the data.
  void edit_header(const std::function<void(json&)>& edit) const {
    const std::string all = read("model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, all.data(), sizeof length);
    json header = json::parse(all.substr(8, length));
    edit(header);
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t now = text.size();
    write_text(path() / "model.safetensors",
               std::string(reinterpret_cast<const char*>(&now), sizeof now) + text + all.substr(8 + length));
  }

 private:
  TempFolder folder_;
};

TEST(BadModel, FolderThatDoesNotExist) {
  const RunFile file("config_version = 1\nmodel.path = \"./nowhere\"\nprompts = [{ input_ids = [1] }]\n");
  expect_error(kvplug_program({"run", file.path()}), 3, {"run.toml:2", "nowhere"});
}

TEST(BadModel, HubIdInsteadOfAFolder) {
  const RunFile file(
      "config_version = 1\nmodel.path = \"HuggingFaceTB/SmolLM2-135M-Instruct\"\n"
      "prompts = [{ input_ids = [1] }]\n");
  expect_error(kvplug_program({"run", file.path()}), 3, {"HuggingFaceTB/SmolLM2-135M-Instruct", "download"});
}

TEST(BadModel, MissingShard) {
  const SpoiltModel model("llama_sharded");
  fs::remove(model.path() / "model-00003-of-00004.safetensors");
  expect_error(model.run(), 3, {"model-00003-of-00004.safetensors", "missing"});
}

TEST(BadModel, TruncatedShard) {
  const SpoiltModel model("llama_sharded");
  const fs::path shard = model.path() / "model-00002-of-00004.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 100);
  expect_error(model.run(), 3, {"model-00002-of-00004.safetensors", "bytes"});
}

TEST(BadModel, HeaderLongerThanTheFile) {
  const SpoiltModel model;
  std::string all = model.read("model.safetensors");
  const uint64_t lie = uint64_t{1} << 40;
  std::memcpy(all.data(), &lie, sizeof lie);
  write_text(model.path() / "model.safetensors", all);
  expect_error(model.run(), 3, {"model.safetensors", "header"});
}

TEST(BadModel, HeaderThatIsNoJson) {
  const SpoiltModel model;
  std::string all = model.read("model.safetensors");
  all[8] = '[';
  write_text(model.path() / "model.safetensors", all);
  expect_error(model.run(), 3, {"model.safetensors", "JSON"});
}

TEST(BadModel, OffsetsBeyondTheFile) {
  const SpoiltModel model;
  model.edit_header([](json& header) {
    auto& offsets = header["model.norm.weight"]["data_offsets"];
    offsets = {offsets[0].get<uint64_t>() + (uint64_t{1} << 40), offsets[1].get<uint64_t>() + (uint64_t{1} << 40)};
  });
  expect_error(model.run(), 3, {"model.safetensors", "model.norm.weight"});
}

TEST(BadModel, DtypeThatIsNoFloat) {
  const SpoiltModel model;
  model.edit_header([](json& header) { header["model.norm.weight"]["dtype"] = "I32"; });
  expect_error(model.run(), 3, {"model.norm.weight", "float32"});
}

TEST(BadModel, ShapeOfAnotherModel) {
  const SpoiltModel model;
  model.edit_config([](json& config) { config["vocab_size"] = 300; });
  expect_error(model.run(), 3, {"embed_tokens", "300"});
}

TEST(BadModel, TensorMissing) {
  const SpoiltModel model;
  model.edit_header([](json& header) {
    header["model.layers.1.self_attn.other.weight"] = header["model.layers.1.self_attn.k_proj.weight"];
    header.erase("model.layers.1.self_attn.k_proj.weight");
  });
  expect_error(model.run(), 3, {"model.layers.1.self_attn.k_proj.weight"});
}

TEST(BadModel, ConfigThatIsNoJson) {
  const SpoiltModel model;
  write_text(model.path() / "config.json", "{\"model_type\": \"llama\",");
  expect_error(model.run(), 3, {"config.json", "JSON"});
}

TEST(BadModel, UnknownFamily) {
  const SpoiltModel model;
  model.edit_config([](json& config) { config["model_type"] = "gpt9", config["architectures"] = {"Gpt9ForCausalLM"}; });
  expect_error(model.run(), 3, {"Gpt9ForCausalLM"});
}

TEST(BadModel, QuantizedCheckpoint) {
  const SpoiltModel model;
  model.edit_config([](json& config) { config["quantization_config"] = {{"quant_method", "gptq"}}; });
  expect_error(model.run(), 3, {"quantization_config"});
}

TEST(BadModel, CodeInTheCheckpoint) {
  const SpoiltModel model;
  model.edit_config([](json& config) { config["auto_map"] = {{"AutoModel", "modeling.Model"}}; });
  expect_error(model.run(), 3, {"auto_map"});
}

TEST(BadModel, OnlyOtherFormats) {
  const SpoiltModel model;
  fs::rename(model.path() / "model.safetensors", model.path() / "pytorch_model.bin");
  expect_error(model.run(), 3, {"safetensors", ".bin", "save"});
}

TEST(BadRunFile, Missing) { expect_error(kvplug_program({"run", "/nowhere/run.toml"}), 2, {"/nowhere/run.toml"}); }

TEST(BadRunFile, InvalidToml) {
  const RunFile file("config_version = 1\nmodel.path = \"x\n");
  expect_error(kvplug_program({"run", file.path()}), 2, {"run.toml:2"});
}

TEST(BadRunFile, UnknownKey) {
  const RunFile file(llama_run("generation.temprature = 0.5\n"));
  expect_error(kvplug_program({"run", file.path()}), 2, {"run.toml:6", "generation.temprature", "temperature"});
}

TEST(BadRunFile, WrongType) {
  const RunFile file(llama_run("generation.top_k = \"many\"\n"));
  expect_error(kvplug_program({"run", file.path()}), 2, {"run.toml:6", "generation.top_k", "many"});
}

TEST(BadRunFile, OutOfRange) {
  const RunFile file(llama_run("generation.top_p = 1.5\n"));
  expect_error(kvplug_program({"run", file.path()}), 2, {"run.toml:6", "generation.top_p", "1.5"});
}

TEST(BadRunFile, UnknownKind) {
  const RunFile file(llama_run("generation.cache_implementation = \"acme/none\"\n"));
  expect_error(kvplug_program({"run", file.path()}), 2, {"acme/none"});
}

TEST(BadRunFile, KindWithAReason) {
  const RunFile file(llama_run("generation.cache_implementation = \"paged\"\n"));
  expect_error(kvplug_program({"run", file.path()}), 2, {"paged", "dynamic"});
}

TEST(BadRunFile, OptionOfNoCache) {
  const RunFile file(llama_run("generation.cache_config = { nbits = 4 }\n"));
  expect_error(kvplug_program({"run", file.path()}), 2, {"nbits", "dynamic"});
}

TEST(BadRunFile, CapabilityThatNobodyHas) {
  const RunFile file(
      llama_run("generation.cache_implementation = \"test/plain\"\n"
                "cache.negotiation.require = [\"fused_attention\"]\nplugins.search_path = [\"" +
                std::string(KVPLUG_TEST_BUILD) + "/misbehaving/plain\"]\n"));
  expect_error(kvplug_program({"run", file.path()}), 6, {"fused_attention", "test/plain"});
}

// Told by the plugin's probe, so before the weights are read: create says "create".
TEST(BadRunFile, FolderThatTakesNoFiles) {
  const auto refused = [](const std::string& text, const std::string& path, const char* why,
                          const std::vector<std::string>& commands) {
    const RunFile file(text);
    for (const std::string& command : commands) {
      expect_error(kvplug_program({command, file.path()}), 1,
                   {"probe: disk_path '" + path + "'", why, "give a folder that exists and may be written to"});
    }
  };
  const TempFolder folder;
  const std::string file = folder / "file", missing = folder / "missing", closed = folder / "closed";
  write_text(file, "x");
  fs::create_directory(closed);
  fs::permissions(closed, fs::perms::owner_read);
  for (const auto& [path, why] :
       {std::pair{missing, "No such file or directory"}, {file, "Not a directory"}, {closed, "Permission denied"}}) {
    if (path == closed && geteuid() == 0) continue;  // root may write anywhere
    const std::string options = "cache_config = { disk_path = \"" + path + "\" }\n";
    const std::string chosen = "generation.cache_implementation = \"offloaded\"\ngeneration." + options;
    refused(llama_run(chosen), path, why, {"plan", "explain", "run"});
    refused(llama_run("memory.plan = \"off\"\n" + chosen), path, why, {"run"});
    refused(llama_run("[cache.oom_fallback]\ncache_implementation = \"offloaded_static\"\n" + options), path, why,
            {"plan", "explain", "run"});
  }
  EXPECT_FALSE(fs::exists(missing));
  fs::permissions(closed, fs::perms::owner_all);
}

TEST(BadPrompt, IdOutOfTheVocabulary) {
  const RunFile file(llama_run("", "[1, 256]"));
  expect_error(kvplug_program({"run", file.path()}), 2, {"256", "vocabulary", "0 to 255"});
}

TEST(BadPrompt, EmptyWithoutAStart) {
  const RunFile file(llama_run("model.use_generation_config = false\n", "[]"));
  expect_error(kvplug_program({"run", file.path()}), 2, {"empty"});
}

TEST(BadPrompt, LongerThanTheModel) {
  const RunFile file(llama_run("", json(std::vector<int>(129, 5)).dump()));
  expect_error(kvplug_program({"run", file.path()}), 2, {"129", "128", "positions"});
}

TEST(BadPrompt, NoRoomLeftIsNotAnError) {
  const RunFile file(llama_run("", json(std::vector<int>(128, 5)).dump()));
  const Outcome got = kvplug_program({"run", file.path(), "--json"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  const json document = json::parse(got.out);
  EXPECT_EQ(document["results"][0]["usage"]["new_tokens"], 1);
  EXPECT_NE(document["notices"].dump().find("positions"), std::string::npos);
}

TEST(BadPrompt, TextWithoutATokenizer) {
  const Outcome got = kvplug_program({"generate", "-m", model_folder("llama"), "-p", "Hello"});
  expect_error(got, 3, {"tokenizer.json"});
}

TEST(BadPrompt, OthersGoOnWhenAsked) {
  const RunFile file(
      "config_version = 1\nmodel.path = \"" + model_folder("llama") +
      "\"\nrun.on_prompt_error = \"continue\"\ngeneration.max_new_tokens = 2\ngeneration.eos_token_id = []\n"
      "prompts = [{ id = \"bad\", input_ids = [999] }, { id = \"good\", input_ids = [1, 2] }]\n");
  const Outcome got = kvplug_program({"run", file.path(), "--json"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  const json results = json::parse(got.out)["results"];
  EXPECT_EQ(results[0]["sequences"][0]["finish_reason"], "error");
  EXPECT_NE(results[0]["error"]["message"].get<std::string>().find("999"), std::string::npos);
  EXPECT_EQ(results[1]["usage"]["new_tokens"], 2);
}

// The plugins of tests/misbehaving, each loaded by its manifest.
Outcome run_with_plugin(const std::string& name, bool use) {
  const std::string manifest = std::string(KVPLUG_TEST_BUILD) + "/misbehaving/" + name + "/" + name + ".toml";
  const RunFile file(llama_run((use ? "generation.cache_implementation = \"test/" + name + "\"\n" : "") +
                               "[[plugins.load]]\npath = \"" + manifest + "\"\n"));
  return kvplug_program({"run", file.path()});
}

TEST(BadPlugin, LibraryThatIsNoPlugin) {
  expect_error(run_with_plugin("no_entry", true), 4, {"no_entry", "kvp_plugin_entry_v0"});
}

TEST(BadPlugin, WrongAbiMajor) { expect_error(run_with_plugin("wrong_major", true), 4, {"wrong_major", "7"}); }

TEST(BadPlugin, WrongMajorInTheTable) {
  expect_error(run_with_plugin("wrong_major_table", true), 4, {"wrong_major_table", "9"});
}

TEST(BadPlugin, MissingDependency) {
  expect_error(run_with_plugin("missing_dependency", true), 4, {"missing_dependency", "libkvplug_absent.so"});
}

TEST(BadPlugin, CreateFails) {
  expect_error(run_with_plugin("failing_create", true), 1, {"failing_create", "the folder /nowhere cannot be made"});
}

TEST(BadPlugin, CreatePanics) {
  expect_error(run_with_plugin("panicking_create", true), 4, {"panicking_create", "index out of range"});
}

TEST(BadPlugin, CreateThrows) {
  expect_error(run_with_plugin("throwing_create", true), 4, {"throwing_create", "thrown in create"});
}

TEST(BadPlugin, CreateMakesNothing) { expect_error(run_with_plugin("empty_create", true), 4, {"empty_create"}); }

TEST(BadPlugin, FileThatIsNoLibrary) {
  const TempFolder folder;
  write_text(folder / "text.so", "not a library");
  const RunFile file(llama_run("[[plugins.load]]\npath = \"" + (folder / "text.so") + "\"\n"));
  expect_error(kvplug_program({"run", file.path()}), 4, {"text.so"});
}

TEST(BadPlugin, WrongChecksum) {
  const RunFile file(llama_run("[[plugins.load]]\npath = \"" + std::string(KVPLUG_TEST_BUILD) +
                               "/misbehaving/plain/plain.toml\"\nsha256 = \"" + std::string(64, '0') + "\"\n"));
  expect_error(kvplug_program({"run", file.path()}), 4, {"sha256", "plain"});
}

TEST(BadPlugin, GoodOneOfTheSameMakeWorks) {
  const Outcome got = run_with_plugin("plain", true);
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.out, json(kAnswer).dump() + "\n");
}

TEST(BadCommandLine, UnknownCommandOrFlag) {
  expect_error(kvplug_program({"runn"}), 2, {"--help"});
  expect_error(kvplug_program({"generate", "--temprature", "1"}), 2, {"temprature"});
  expect_error(kvplug_program({"generate", "-m", model_folder("llama"), "-c", "4096"}), 2, {"-c", "max_cache_len"});
}

}  // namespace
}  // namespace kvplug::testing
