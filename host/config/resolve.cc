// SPDX-License-Identifier: Apache-2.0
// From layers to the typed Run: what only the whole can tell (contradictions, the options of the chosen kind).
#include <algorithm>
#include <set>

#include "config/check.h"
#include "config/config.h"
#include "config/effective.h"
#include "config/layers.h"
#include "config/schema.h"
#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/kinds.h"

namespace kvplug::config {
namespace {

using nlohmann::json;

template <class T>
std::optional<T> maybe(const json& value) {
  return value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

template <class T>
T or_empty(const json& value) {
  return value.is_null() ? T{} : value.get<T>();
}

void add_notice(std::vector<Notice>& notices, std::string code, std::string text) {
  Notice notice{std::move(code), std::move(text)};
  if (std::find(notices.begin(), notices.end(), notice) == notices.end()) notices.push_back(std::move(notice));
}

class Resolver {
 public:
  Resolver(const State& state, const KindTable* kinds) : state_(state), kinds_(kinds) {}

  Run resolve() {
    const View view(state_);
    run_.notices = state_.checkpoint_notices;
    sections(view);
    run_.generation = generation(view);
    negotiation(view);
    oom_fallback(view);
    plugins(view);
    prompts();
    measures(view);
    std::set<std::string> ignored;
    for (const auto& keys : state_.without_effect)
      for (const auto& [key, origin] : keys) ignored.insert(key);
    run_.without_effect.assign(ignored.begin(), ignored.end());
    run_.digest = digest_of(effective_values(state_));
    return std::move(run_);
  }

 private:
  void sections(const View& view) {
    const auto text = [&](const char* path) { return view.value(path).get<std::string>(); };
    const auto flag = [&](const char* path) { return view.value(path).get<bool>(); };
    run_.run = {text("run.task"),
                text("run.name"),
                maybe<uint64_t>(view.value("run.seed")),
                flag("run.deterministic"),
                view.value("run.threads").get<int>(),
                text("run.log_level"),
                text("run.on_prompt_error") == "stop"};
    const View::Found path = view.find("model.path");
    run_.model = {or_empty<std::string>(view.value("model.path")),
                  path.entry != nullptr ? path.entry->written.get<std::string>() : "",
                  text("model.dtype"),
                  text("model.device"),
                  flag("model.mmap"),
                  flag("model.use_generation_config")};
    tokenizer(view);
    run_.input = {maybe<std::string>(view.value("input.jsonl")), text("input.text_column"),
                  text("input.messages_column"), view.value("input.batch_size").get<int64_t>(),
                  view.value("input.limit").get<int64_t>()};
    run_.memory.plan = text("memory.plan");
    memory_limits(view);
    run_.memory.headroom = view.value("memory.headroom").get<double>();
    run_.output = {text("output.format"),
                   text("output.path"),
                   flag("output.stream"),
                   view.value("output.include").get<std::vector<std::string>>(),
                   maybe<std::string>(view.value("output.logits_path")),
                   flag("output.overwrite"),
                   text("output.progress"),
                   text("output.color")};
  }

  void memory_limits(const View& view) {
    const json host = view.value("memory.max_host_bytes"), device = view.value("memory.max_device_bytes");
    if (host.is_number()) run_.memory.max_host_bytes = host.get<uint64_t>();
    if (!device.is_number()) return;
    if (!run_.model.device.starts_with("cuda"))
      throw Error(
          Code::kConfig,
          "a limit of device memory, and the model computes on the CPU (model.device = \"" + run_.model.device + "\")",
          "use memory.max_host_bytes, or set model.device = \"cuda\"", view.where("memory.max_device_bytes"));
    run_.memory.max_device_bytes = device.get<uint64_t>();
  }

  void tokenizer(const View& view) {
    TokenizerSection& section = run_.tokenizer;
    section.path = maybe<std::string>(view.value("tokenizer.path")).value_or(run_.model.path);
    section.add_special_tokens = view.value("tokenizer.add_special_tokens").get<bool>();
    section.skip_special_tokens = view.value("tokenizer.skip_special_tokens").get<bool>();
    section.chat_template = view.value("tokenizer.chat_template").get<std::string>();
    section.continue_final_message = view.value("tokenizer.continue_final_message").get<bool>();
    section.add_generation_prompt = view.value("tokenizer.add_generation_prompt").get<bool>();
    if (section.continue_final_message && section.add_generation_prompt) {
      if (view.source("tokenizer.add_generation_prompt") != Source::kDefault)
        throw Error(Code::kConfig, "the final message cannot be continued behind a generation prompt",
                    "set tokenizer.add_generation_prompt = false, or leave it out",
                    view.where("tokenizer.continue_final_message"));
      section.add_generation_prompt = false;
    }
    for (const auto& [name, entry] : view.options("tokenizer.chat_template_kwargs"))
      section.chat_template_kwargs[name] = entry->value;
  }

  Generation generation(const View& view) {
    Generation g;
    const auto value = [&](const char* name) { return view.value(std::string("generation.") + name); };
    g.max_length = value("max_length").get<int64_t>();
    g.max_length_given = view.source("generation.max_length") != Source::kDefault;
    g.max_new_tokens = maybe<int64_t>(value("max_new_tokens"));
    g.min_length = value("min_length").get<int64_t>();
    g.min_new_tokens = maybe<int64_t>(value("min_new_tokens"));
    g.max_time = maybe<double>(value("max_time"));
    g.stop_strings = or_empty<std::vector<std::string>>(value("stop_strings"));
    g.do_sample = value("do_sample").get<bool>();
    g.use_cache = value("use_cache").get<bool>();
    g.max_cache_len = maybe<int64_t>(value("max_cache_len"));
    g.disable_compile = value("disable_compile").get<bool>();
    g.prefill_chunk_size = maybe<int64_t>(value("prefill_chunk_size"));
    g.temperature = value("temperature").get<double>();
    g.top_k = value("top_k").get<int64_t>();
    g.top_p = value("top_p").get<double>();
    g.min_p = maybe<double>(value("min_p"));
    g.typical_p = value("typical_p").get<double>();
    g.epsilon_cutoff = value("epsilon_cutoff").get<double>();
    g.eta_cutoff = value("eta_cutoff").get<double>();
    g.repetition_penalty = value("repetition_penalty").get<double>();
    g.no_repeat_ngram_size = value("no_repeat_ngram_size").get<int64_t>();
    g.bad_words_ids = or_empty<std::vector<std::vector<int64_t>>>(value("bad_words_ids"));
    g.suppress_tokens = or_empty<std::vector<int64_t>>(value("suppress_tokens"));
    g.begin_suppress_tokens = or_empty<std::vector<int64_t>>(value("begin_suppress_tokens"));
    g.forced_bos_token_id = maybe<int64_t>(value("forced_bos_token_id"));
    g.forced_eos_token_id = or_empty<std::vector<int64_t>>(value("forced_eos_token_id"));
    g.remove_invalid_values = value("remove_invalid_values").get<bool>();
    g.renormalize_logits = value("renormalize_logits").get<bool>();
    g.bos_token_id = maybe<int64_t>(value("bos_token_id"));
    g.eos_token_id = or_empty<std::vector<int64_t>>(value("eos_token_id"));
    g.eos_token_id_given = view.source("generation.eos_token_id") != Source::kDefault;
    g.pad_token_id = maybe<int64_t>(value("pad_token_id"));
    g.output_logits = value("output_logits").get<bool>();
    cache(view, g);
    contradictions(view, g);
    return g;
  }

  void cache(const View& view, Generation& g) {
    const std::string path = "generation.cache_implementation";
    const auto word = view.value(path).get<std::string>();
    g.cache_source = view.source(path);
    g.cache_implementation = kind(word, view.where(path));
    // What the checkpoint says of options counts while its kind is the one in use.
    const Source floor = g.cache_source > Source::kCheckpoint ? Source::kFile : Source::kCheckpoint;
    g.cache_config = options_of(g.cache_implementation, view.options("generation.cache_config", floor));
    capacity(view, g);
    const bool named = g.cache_source > Source::kCheckpoint || !g.cache_config.empty() ||
                       view.source("generation.max_cache_len") > Source::kCheckpoint;
    if (!g.use_cache && named)
      add_notice(run_.notices, "cache_off",
                 view.where("generation.use_cache") +
                     " = false: cache_implementation, cache_config and max_cache_len have no effect");
  }

  // Checked where the plugins are known.
  json options_of(const std::string& kind, const std::map<std::string, const Entry*>& given) const {
    json out = json::object();
    for (const auto& [name, entry] : given) out[name] = entry->value;
    if (kinds_ == nullptr) return out;
    const OptionsSchema& schema = kinds_->schemas.find(kind)->second;
    const KindOptions options(kind, schema, kinds_->quantizers, out, kinds_->searched);
    // The back end first: what else may stand here follows from it.
    if (const auto named = given.find("backend"); named != given.end())
      check_cache_option(kind, *kinds_, options, "backend", named->second->value, named->second->where);
    for (const auto& [name, entry] : given)
      out[name] = check_cache_option(kind, *kinds_, options, name, entry->value, entry->where);
    return out;
  }

  // A vendor's kind may have a capacity; of the built-in ones two do.
  void capacity(const View& view, Generation& g) {
    const std::string path = "generation.max_cache_len", where = view.where(path);
    run_.max_cache_len_where = where;
    if (!g.max_cache_len || has_capacity(g.cache_implementation)) return;
    if (view.source(path) > Source::kCheckpoint)
      throw Error(Code::kConfig, "\"" + g.cache_implementation + "\" has no capacity: it takes what the run needs",
                  "remove the key, or use cache_implementation = \"static\"", where);
    add_notice(
        run_.notices, "max_cache_len_ignored",
        where + ": " + std::to_string(*g.max_cache_len) + " has no effect on \"" + g.cache_implementation + "\"");
    g.max_cache_len.reset();
  }

  std::string kind(const std::string& word, const std::string& where) {
    if (word.size() > 200) throw Error(Code::kConfig, "the name of a cache kind has at most 200 bytes", {}, where);
    std::vector<std::string> registered, searched;
    if (kinds_ != nullptr) {
      for (const auto& [name, schema] : kinds_->schemas) registered.push_back(name);
      searched = kinds_->searched;
    } else {
      // Only what a retired word means can be told; whether the kind exists is judged where the plugins are known.
      for (const std::string_view name : builtin_cache_kinds()) registered.emplace_back(name);
      registered.push_back(word);
    }
    try {
      const KindChoice choice = choose_kind(word, registered, searched);
      if (!choice.notice.empty()) add_notice(run_.notices, "kind_mapped", where + ": " + choice.notice);
      return choice.kind;
    } catch (const Error& error) {
      throw Error(error.code(), error.message(), error.hint(), where);
    }
  }

  void contradictions(const View& view, const Generation& g) {
    const auto where = [&](const char* name) { return view.where(std::string("generation.") + name); };
    if (g.do_sample && g.temperature == 0.0)
      throw Error(Code::kConfig, "0 is out of range; expected more than 0 with do_sample = true",
                  "set generation.do_sample = false for the most probable token at every step", where("temperature"));
    if (g.prefill_chunk_size && !g.use_cache)
      throw Error(Code::kConfig, "a prompt can be fed in pieces only into a cache",
                  "remove the key, or set generation.use_cache = true", where("prefill_chunk_size"));
    for (const auto& words : g.bad_words_ids)
      if (words.empty()) throw Error(Code::kConfig, "an empty sequence of token ids", {}, where("bad_words_ids"));
    for (const std::string& stop : g.stop_strings)
      if (stop.empty()) throw Error(Code::kConfig, "an empty stop string", {}, where("stop_strings"));
    if (g.max_new_tokens && g.max_length_given)
      add_notice(
          run_.notices, "max_length_overridden",
          where("max_length") + ": max_new_tokens = " + std::to_string(*g.max_new_tokens) + " wins over max_length");
    const int64_t least = g.min_new_tokens.value_or(0);
    if (g.max_new_tokens && least > *g.max_new_tokens)
      add_notice(run_.notices, "length_unreachable",
                 where("min_new_tokens") + ": " + std::to_string(least) +
                     " tokens are never reached with max_new_tokens = " + std::to_string(*g.max_new_tokens));
    if (g.do_sample) return;
    std::string idle;
    for (const char* name : {"temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"}) {
      const std::string path = std::string("generation.") + name;
      const Key& key = *find_key(path);
      const json value = view.value(path);
      if (value == fallback_of(key) || value == json::parse(key.off)) continue;
      idle += (idle.empty() ? "" : ", ") + std::string(name);
    }
    if (!idle.empty()) add_notice(run_.notices, "sampling_off", "do_sample = false: no effect of " + idle);
  }

  void negotiation(const View& view) {
    const std::string section = "cache.negotiation.";
    NegotiationSection& n = run_.cache.negotiation;
    n.fallback_on_unsupported = view.value(section + "on_unsupported") == "fallback";
    n.require = view.value(section + "require").get<std::vector<std::string>>();
    for (const json& word : view.value(section + "fallback"))
      n.fallback.push_back(kind(word.get<std::string>(), view.where(section + "fallback")));
    if (n.fallback_on_unsupported && n.fallback.empty())
      throw Error(Code::kConfig, "no kind to fall back to", "list kinds in cache.negotiation.fallback",
                  view.where(section + "on_unsupported"));
    if (!n.fallback_on_unsupported && !n.fallback.empty())
      throw Error(Code::kConfig, "kinds that are never tried while on_unsupported = \"error\"",
                  "set cache.negotiation.on_unsupported = \"fallback\"", view.where(section + "fallback"));
  }

  void oom_fallback(const View& view) {
    const std::string path = "cache.oom_fallback.cache_implementation";
    const auto word = maybe<std::string>(view.value(path));
    const auto given = view.options("cache.oom_fallback.cache_config");
    if (word) {
      const std::string named = kind(*word, view.where(path));
      run_.cache.oom_fallback = {named, options_of(named, given)};
      const Generation& g = run_.generation;
      if (g.cache_implementation == named && g.cache_config == run_.cache.oom_fallback->cache_config)
        throw Error(Code::kConfig, "\"" + named + "\" with the same options is what runs out of memory",
                    "name another kind, such as \"offloaded\" with a disk_path, or other options", view.where(path));
    } else if (!given.empty()) {
      throw Error(Code::kConfig, "options of a kind that is not named", "name it in " + path,
                  given.begin()->second->where);
    }
  }

  // A list of caches; none named means that of [generation].
  std::vector<NamedCache> caches(const std::string& list) {
    const Layer& layer = state_.layer(state_.owner_of(list));
    std::vector<NamedCache> out;
    for (std::size_t i = 0; i < state_.count_of(list); ++i) {
      const std::string element = list + "[" + std::to_string(i) + "]", path = element + ".cache_implementation",
                        options = element + ".cache_config.";
      const auto named = layer.find(path);
      if (named == layer.end())
        throw Error(Code::kConfig, "`cache_implementation` is missing", {}, layer.at(element).where);
      std::map<std::string, const Entry*> given;
      for (auto at = layer.lower_bound(options); at != layer.end() && at->first.starts_with(options); ++at)
        given.emplace(at->first.substr(options.size()), &at->second);
      const std::string word = kind(named->second.value.get<std::string>(), named->second.where);
      out.push_back({word, options_of(word, given)});
    }
    if (out.empty()) out.push_back({run_.generation.cache_implementation, run_.generation.cache_config});
    return out;
  }

  void measures(const View& view) {
    const auto list = [&](const char* path) {
      const json value = view.value(path);
      auto out = value.is_array() ? value.get<std::vector<int64_t>>() : std::vector{value.get<int64_t>()};
      if (out.empty()) throw Error(Code::kConfig, "an empty list", "name at least one number", view.where(path));
      return out;
    };
    run_.bench = {list("bench.prompt_tokens"),
                  list("bench.new_tokens"),
                  list("bench.depth"),
                  list("bench.batch_size"),
                  view.value("bench.repetitions").get<int64_t>(),
                  view.value("bench.warmup").get<int64_t>(),
                  caches("bench.cache")};
    const std::string baseline = "diff.baseline.cache_implementation";
    const std::string word = kind(view.value(baseline).get<std::string>(), view.where(baseline));
    run_.diff = {maybe<std::string>(view.value("diff.file")),
                 view.value("diff.tokens").get<int64_t>(),
                 view.value("diff.max_mean_kl").get<double>(),
                 view.value("diff.min_top1_agreement").get<double>(),
                 view.value("diff.max_ppl_ratio").get<double>(),
                 {word, options_of(word, view.options("diff.baseline.cache_config"))},
                 caches("diff.candidate")};
    const bool table = run_.output.format == "csv" || run_.output.format == "md";
    if (table && run_.run.task != "bench" && run_.run.task != "diff")
      throw Error(Code::kConfig, "\"" + run_.output.format + "\" is a form of bench and diff",
                  "use text, json or jsonl", view.where("output.format"));
  }

  void plugins(const View& view) {
    run_.plugins.search_path = view.value("plugins.search_path").get<std::vector<std::string>>();
    run_.plugins.min_conformance = view.value("plugins.min_conformance").get<std::string>();
    const Layer& layer = state_.layer(state_.owner_of("plugins.load"));
    for (std::size_t i = 0; i < state_.count_of("plugins.load"); ++i) {
      const std::string element = "plugins.load[" + std::to_string(i) + "]";
      const auto text = [&](const char* name) {
        const auto found = layer.find(element + "." + name);
        return found == layer.end() ? std::string() : found->second.value.get<std::string>();
      };
      PluginLoad load{text("name"), text("path"), text("sha256"), layer.at(element).where};
      if (load.path.empty()) throw Error(Code::kConfig, "`path` is missing", {}, load.where);
      std::transform(load.sha256.begin(), load.sha256.end(), load.sha256.begin(), [](unsigned char c) {
        return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : static_cast<char>(c);
      });
      if (!load.sha256.empty() &&
          (load.sha256.size() != 64 || load.sha256.find_first_not_of("0123456789abcdef") != std::string::npos))
        throw Error(Code::kConfig, "expected 64 hex digits", {}, layer.at(element + ".sha256").where);
      run_.plugins.load.push_back(std::move(load));
    }
  }

  void prompts() {
    const Layer& layer = state_.layer(state_.owner_of("prompts"));
    std::set<std::string> ids;
    for (std::size_t i = 0; i < state_.count_of("prompts"); ++i) {
      const std::string element = "prompts[" + std::to_string(i) + "]";
      const auto entry = [&](const char* name) -> const Entry* {
        const auto found = layer.find(element + "." + name);
        return found == layer.end() ? nullptr : &found->second;
      };
      Prompt prompt;
      prompt.where = layer.at(element).where;
      const Entry* const id = entry("id");
      prompt.id = id != nullptr ? id->value.get<std::string>() : std::to_string(i);
      if (id != nullptr && prompt.id.empty()) throw Error(Code::kConfig, "an empty id", {}, id->where);
      if (!ids.insert(prompt.id).second)
        throw Error(Code::kConfig, "two prompts have the id \"" + prompt.id + "\"", {},
                    id != nullptr ? id->where : prompt.where);
      int given = 0;
      for (const char* name : {"text", "file", "messages", "input_ids"}) given += entry(name) != nullptr ? 1 : 0;
      if (given != 1)
        throw Error(Code::kConfig, given == 0 ? "a prompt without a content" : "a prompt with more than one content",
                    "give exactly one of text, file, messages, input_ids", prompt.where);
      if (entry("text") != nullptr) prompt.text = entry("text")->value.get<std::string>();
      if (entry("file") != nullptr) prompt.file = entry("file")->value.get<std::string>();
      if (entry("messages") != nullptr) prompt.messages = entry("messages")->value;
      if (prompt.messages && prompt.messages->empty())
        throw Error(Code::kConfig, "an empty list of messages", {}, entry("messages")->where);
      if (entry("input_ids") != nullptr) prompt.input_ids = entry("input_ids")->value.get<std::vector<int64_t>>();
      if (entry("seed") != nullptr) prompt.seed = entry("seed")->value.get<uint64_t>();
      prompt.generation = generation(View(state_, static_cast<int>(i)));
      run_.prompts.push_back(std::move(prompt));
    }
  }

  const State& state_;
  const KindTable* kinds_;
  Run run_;
};

}  // namespace

Run Config::resolve(const KindTable* kinds) const { return Resolver(*state_, kinds).resolve(); }

void check_complete(const Run& run) {
  if (run.model.path.empty())
    throw Error(Code::kConfig, "no model is named", "set model.path to a folder with config.json and *.safetensors",
                "model.path");
  if (run.run.task == "generate" && run.prompts.empty() && !run.input.jsonl)
    throw Error(Code::kConfig, "nothing to generate from", "add [[prompts]] with a text, or input.jsonl", "prompts");
  if (run.run.task == "diff" && run.prompts.empty() && !run.input.jsonl && !run.diff.file)
    throw Error(Code::kConfig, "nothing to score", "set diff.file, or add [[prompts]]", "diff.file");
}

}  // namespace kvplug::config
