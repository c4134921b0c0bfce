// SPDX-License-Identifier: Apache-2.0
// What nobody should ask of a cache, and somebody will: each is refused in words that name the value and what was
// expected, and leaves the cache, the folder and the memory as they were.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <optional>

#include "kinds.h"

namespace kvplug::test {
namespace {

constexpr int64_t kCapacity = 40;
const LayerShape kFull{4, 2, 8, 4};
const LayerShape kSliding{4, 2, 8, 4, KVP_LAYER_SLIDING, 8};

class KindBadInput : public ::testing::TestWithParam<Kind> {
 protected:
  const Kind& kind() const { return GetParam(); }
  const kvp_cache_iface* iface() const { return iface_of(kind()); }

  // probe and create (and plan) answer `status`, with all of `words`.
  void expect_refused(const kvp_cache_create& create, int32_t status, const std::vector<std::string>& words) {
    char text[512] = "";
    kvp_error err{sizeof err, 0, 0, text, sizeof text, 0};
    kvp_cache_info info{};
    info.struct_size = sizeof info;
    kvp_memory memory{};
    memory.struct_size = sizeof memory;
    kvp_cache* self = nullptr;
    EXPECT_EQ(iface()->probe(&create, &info, &err), status) << text;
    EXPECT_EQ(iface()->plan(&create, 1, 1, &memory, &err), status) << text;
    EXPECT_EQ(iface()->create(&create, &self, &err), status) << text;
    EXPECT_EQ(self, nullptr);
    for (const std::string& word : words)
      EXPECT_NE(std::string(text).find(word), std::string::npos) << word << ": " << text;
    EXPECT_EQ(TestHost::get().held(), 0u);
  }
};

class OffloadedKindBadInput : public KindBadInput {};
class GrowingFileBadInput : public KindBadInput {};
class FixedFileBadInput : public KindBadInput {};

// A cache and what it should hold.
struct Filled {
  std::vector<LayerShape> shapes;
  KindArgs args;
  LoadedCache cache;
  ReferenceCache want;
  int64_t max;
  Random random{4};

  Filled(const Kind& kind, std::vector<LayerShape> layers, std::string folder = "", int64_t tokens = kCapacity)
      : shapes(std::move(layers)),
        args(shapes, kF32, 1, kind.fixed ? tokens : -1, std::move(folder)),
        cache(iface_of(kind), args.create),
        want(reference_of(shapes)),
        max(kind.fixed ? tokens : -1) {}

  Values k(size_t i, int64_t batch, int64_t tokens) {
    return random_tensor(kF32, batch, shapes[i].kv_heads, tokens, shapes[i].key_dim, random);
  }
  Values v(size_t i, int64_t batch, int64_t tokens) {
    return random_tensor(kF32, batch, shapes[i].kv_heads, tokens, shapes[i].value_dim, random);
  }
  // Appends to every layer; the status of the first that refuses.
  int32_t append(int64_t batch, int64_t tokens) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Values key = k(i, batch, tokens), value = v(i, batch, tokens);
      const int32_t status = cache.update(static_cast<int32_t>(i), key, value, nullptr, nullptr, nullptr, nullptr);
      if (status != KVP_OK) return status;
      want.append(i, key, value, nullptr, nullptr);
    }
    want.settle();
    return KVP_OK;
  }
  void expect_refused(int32_t got, int32_t status, const std::vector<std::string>& words) {
    EXPECT_EQ(got, status) << cache.text();
    for (const std::string& word : words)
      EXPECT_NE(cache.text().find(word), std::string::npos) << word << ": " << cache.text();
    ASSERT_NO_FATAL_FAILURE(expect_same());
  }
  void expect_same() { ASSERT_NO_FATAL_FAILURE(expect_kind_same(cache, want, max)); }
};

TEST_P(KindBadInput, ACapacityOfNothing) {
  for (const int64_t tokens : {int64_t{0}, int64_t{-1}, int64_t{-5}}) {
    const KindArgs args({kFull}, kF32, 1, tokens);
    if (kind().fixed) {
      expect_refused(args.create, KVP_INVALID_ARGUMENT, {kind().name, "capacity", std::to_string(tokens)});
    } else {
      LoadedCache cache(iface(), args.create);  // an expectation, not a limit
    }
  }
}

TEST_P(KindBadInput, APromptBeyondTheCapacity) {
  for (const LayerShape& layer : {kFull, LayerShape{4, 2, 8, 4, KVP_LAYER_SLIDING, kCapacity + 1}}) {
    Filled at(kind(), {layer});
    const Values k = at.k(0, 2, kCapacity + 1), v = at.v(0, 2, kCapacity + 1);
    kvp_tensor out_k{}, out_v{};
    if (!kind().fixed) {
      ASSERT_EQ(at.append(2, kCapacity + 1), KVP_OK) << at.cache.text();
      at.expect_same();
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.update(0, k, v, nullptr, nullptr, &out_k, &out_v), KVP_CAPACITY,
                                              {std::to_string(kCapacity), std::to_string(kCapacity + 1)}));
    EXPECT_EQ(out_k.ndim, 0);
    const int64_t counts[2] = {kCapacity, 3};  // what the rows really take fits
    ASSERT_EQ(at.cache.update(0, k, v, nullptr, counts, nullptr, nullptr), KVP_OK) << at.cache.text();
    at.want.append(0, k, v, nullptr, counts);
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.append(2, 1), KVP_CAPACITY, {"row 0", std::to_string(kCapacity)}));
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.reserve(2, kCapacity + 1), KVP_CAPACITY, {std::to_string(kCapacity + 1)}));
    kvp_memory memory{};
    memory.struct_size = sizeof memory;
    EXPECT_EQ(iface()->plan(&at.args.create, 1, kCapacity + 1, &memory, nullptr), KVP_CAPACITY);
  }
}

TEST_P(KindBadInput, WindowsThatAreNone) {
  for (const int32_t layer_kind : {KVP_LAYER_SLIDING, KVP_LAYER_CHUNKED}) {
    for (const int64_t window : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
      const KindArgs args({kFull, {4, 2, 8, 4, layer_kind, window}}, kF32, 1, kCapacity);
      expect_refused(args.create, KVP_INVALID_ARGUMENT, {"layer 1", std::to_string(window), "window"});
    }
  }
}

TEST_P(KindBadInput, AWindowOfOneKeepsNothing) {
  Filled at(kind(), {{4, 2, 8, 4, KVP_LAYER_SLIDING, 1}, kFull});
  for (const int64_t tokens : {5, 1, 1, 3}) {
    ASSERT_EQ(at.append(2, tokens), KVP_OK) << at.cache.text();
    EXPECT_EQ(at.cache.lengths(0, 1).kv_len, 1);
    EXPECT_EQ(at.cache.memory(0).unquantized, 0u);
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
  }
  ASSERT_EQ(at.cache.crop({4}), KVP_OK) << at.cache.text();  // the next token needs nothing
  at.want.crop({4});
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
}

TEST_P(KindBadInput, UpdatesOfNothing) {
  Filled at(kind(), {kFull, kSliding});
  kvp_tensor k{}, v{};
  for (const bool filled : {false, true}) {
    if (filled) {
      ASSERT_EQ(at.append(2, 12), KVP_OK);
    }
    for (size_t i = 0; i < 2; ++i) {
      const Values none_k = at.k(i, 2, 0), none_v = at.v(i, 2, 0);
      const auto layer = static_cast<int32_t>(i);
      ASSERT_EQ(at.cache.update(layer, none_k, none_v, nullptr, nullptr, nullptr, nullptr), KVP_OK) << at.cache.text();
      ASSERT_EQ(at.cache.update(layer, none_k, none_v, nullptr, nullptr, &k, &v), KVP_OK) << at.cache.text();
      EXPECT_EQ(k.shape[2], filled ? at.want.kv_len(i, 0) : 0);
    }
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
  }
}

TEST_P(KindBadInput, AnotherBatchOrTypeInMidLife) {
  Filled at(kind(), {kFull, kSliding});
  ASSERT_EQ(at.append(2, 12), KVP_OK);
  for (const int64_t batch : {1, 3}) {
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.append(batch, 1), KVP_INVALID_ARGUMENT, {"batch is " + std::to_string(batch), "2 rows"}));
  }
  const Values half_k = random_tensor(kBF16, 2, 2, 1, 8, at.random),
               half_v = random_tensor(kBF16, 2, 2, 1, 4, at.random);
  for (int32_t i = 0; i < 2; ++i) {
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.update(i, half_k, half_v, nullptr, nullptr, nullptr, nullptr),
                                              KVP_INVALID_ARGUMENT, {"bfloat16", "float32"}));
  }
  ASSERT_NO_FATAL_FAILURE(
      at.expect_refused(at.cache.update(0, at.k(0, 2, 1), half_v, nullptr, nullptr, nullptr, nullptr),
                        KVP_INVALID_ARGUMENT, {"v is bfloat16"}));
  // Emptied, it is free for another batch.
  ASSERT_EQ(at.cache.crop({12}), KVP_OK);
  at.want.crop({12});
  ASSERT_EQ(at.append(3, 2), KVP_OK) << at.cache.text();
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
}

TEST_P(KindBadInput, CropsBeyondWhatIsKept) {
  Filled at(kind(), {kFull, kSliding});
  ASSERT_EQ(at.cache.set_rollback(3), KVP_OK);
  at.want.set_rollback(3);
  ASSERT_EQ(at.append(2, 20), KVP_OK);
  for (const uint32_t flag : {KVP_CALL_CHECK, 0u}) {
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.crop({4}, flag), KVP_INVALID_STATE, {"layer 1", "window of 8", "set_rollback"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.crop({1, 4}, flag), KVP_INVALID_STATE, {"row 1"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.crop({19}, flag), KVP_INVALID_STATE, {"layer 1"}));
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.crop({1, 1, 1}, flag), KVP_INVALID_ARGUMENT, {"3 counts", "2 rows"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.crop({-1}, flag), KVP_INVALID_ARGUMENT, {"-1"}));
  }
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{1, 2}, {2, 1}}) {  // in a row they add up
    ASSERT_EQ(at.cache.crop(counts), KVP_OK) << at.cache.text();
    at.want.crop(counts);
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
  }
  ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.crop({1}), KVP_INVALID_STATE, {"layer 1"}));
  ASSERT_EQ(at.cache.crop({1000}), KVP_OK) << at.cache.text();  // all of it can always go
  at.want.crop({1000});
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
  ASSERT_EQ(at.append(1, 9), KVP_OK) << at.cache.text();
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
}

TEST_P(KindBadInput, GathersOfRowsThatAreNotThere) {
  Filled at(kind(), {kFull, kSliding});
  ASSERT_EQ(at.append(3, 12), KVP_OK);
  ASSERT_EQ(at.cache.gather({2}), KVP_OK);
  at.want.gather({2});
  for (const uint32_t flag : {KVP_CALL_CHECK, 0u}) {
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.gather({0, 1}, flag), KVP_INVALID_ARGUMENT, {"src_rows[1] is 1"}));
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.gather({INT64_MAX}, flag), KVP_INVALID_ARGUMENT, {"src_rows[0]"}));
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.gather({-2}, flag), KVP_INVALID_ARGUMENT, {"src_rows[0] is -2"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.gather({}, flag), KVP_INVALID_ARGUMENT, {"0 rows"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.reserve(1, -1, flag), KVP_INVALID_ARGUMENT, {"-1"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.reserve(-1, 1, flag), KVP_INVALID_ARGUMENT, {"-1"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.set_rollback(-1, flag), KVP_INVALID_ARGUMENT, {"-1"}));
  }
}

TEST_P(KindBadInput, ACloneOfNothingIsACache) {
  for (const bool once_used : {false, true}) {
    Filled at(kind(), {kFull, kSliding});
    if (once_used) {
      ASSERT_EQ(at.append(3, 12), KVP_OK);
      ASSERT_EQ(at.cache.reset(), KVP_OK);
      at.want.reset();
    }
    ASSERT_EQ(at.cache.set_rollback(2), KVP_OK);
    at.want.set_rollback(2);
    LoadedCache copy = at.cache.cloned(2);
    std::swap(at.cache, copy);  // work on the copy
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
    ASSERT_EQ(at.append(2, 12), KVP_OK) << at.cache.text();
    ASSERT_EQ(at.cache.crop({2}), KVP_OK) << at.cache.text();  // the promise was copied too
    at.want.crop({2});
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
    EXPECT_EQ(copy.lengths(0, 0).seen, 0);
  }
  EXPECT_EQ(TestHost::get().held(), 0u);
}

TEST_P(KindBadInput, ACrossLayerIsFilledOnce) {
  Filled at(kind(), {kFull, {4, 2, 8, 4, KVP_LAYER_CROSS}});
  ASSERT_EQ(at.append(2, 12), KVP_OK) << at.cache.text();
  ASSERT_NO_FATAL_FAILURE(
      at.expect_refused(at.cache.update(1, at.k(1, 2, 1), at.v(1, 2, 1), nullptr, nullptr, nullptr, nullptr),
                        KVP_INVALID_STATE, {"layer 1", "12 tokens"}));
}

// A child process says what went wrong in it on standard error, where the parent can be seen to fail.
void in_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child ended with " << status;
}

TEST_P(OffloadedKindBadInput, FoldersThatAreNone) {
  const TempFolder folder;
  const std::string file = folder.path() / "file", missing = folder.path() / "missing",
                    closed = folder.path() / "closed";
  std::ofstream(file) << "x";
  std::filesystem::create_directory(closed);
  std::filesystem::permissions(closed, std::filesystem::perms::owner_read);
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  const auto refused = [&](const std::string& path) {
    const KindArgs args({kFull}, kF32, 1, kCapacity, path);
    char text[512] = "";
    kvp_error err{sizeof err, 0, 0, text, sizeof text, 0};
    kvp_cache* self = nullptr;
    EXPECT_EQ(iface()->create(&args.create, &self, &err), KVP_IO) << path;
    EXPECT_NE(std::string(text).find("disk_path '" + path + "'"), std::string::npos) << text;
    EXPECT_NE(std::string(text).find("give a folder"), std::string::npos) << text;
    EXPECT_EQ(self, nullptr);
    EXPECT_EQ(TestHost::get().held(), 0u);
  };
  refused(missing);
  refused(file);
  refused(file + "/below");
  in_child([&] {  // root may write anywhere
    if (geteuid() == 0) {
      ASSERT_EQ(seteuid(65534), 0);
    }
    refused(closed);
  });
  std::filesystem::permissions(closed, std::filesystem::perms::owner_all);
  EXPECT_TRUE(std::filesystem::is_empty(closed));
}

// Fills the folder with tokens until it is full; then nothing is lost, and with less all goes on.
void fill_the_disk(const Kind& kind, const std::string& folder, bool clone_fits) {
  Filled at(kind, {kFull, kFull, kSliding}, folder, 1 << 14);
  ASSERT_EQ(at.append(2, 100), KVP_OK) << at.cache.text();
  int32_t status = KVP_OK;
  for (int step = 0; step < 100 && status == KVP_OK; ++step) {
    const Values k = at.k(0, 2, 64), v = at.v(0, 2, 64);
    status = at.cache.update(0, k, v, nullptr, nullptr, nullptr, nullptr);
    if (status == KVP_OK) at.want.append(0, k, v, nullptr, nullptr);
  }
  at.want.settle();
  ASSERT_NO_FATAL_FAILURE(at.expect_refused(status, KVP_IO, {"disk_path '" + folder + "'", " bytes are needed"}));
  kvp_cache* clone = nullptr;
  EXPECT_EQ(at.cache.clone(2, &clone), clone_fits ? KVP_OK : KVP_IO) << at.cache.text();
  iface_of(kind)->destroy(clone);
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
  // What is cropped makes room again.
  ASSERT_EQ(at.cache.crop({64 * 3}), KVP_OK) << at.cache.text();
  at.want.crop({64 * 3});
  const Values k = at.k(0, 2, 64 * 2), v = at.v(0, 2, 64 * 2);
  ASSERT_EQ(at.cache.update(0, k, v, nullptr, nullptr, nullptr, nullptr), KVP_OK) << at.cache.text();
  at.want.append(0, k, v, nullptr, nullptr);
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_P(GrowingFileBadInput, FilesThatMayNotGrow) {
  const TempFolder folder;
  in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit most{300 << 10, 300 << 10};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &most), 0);
    fill_the_disk(kind(), folder.path().string(), true);  // the limit is a file's
  });
  EXPECT_TRUE(folder.empty());
}

TEST_P(GrowingFileBadInput, ADiskThatIsFull) {
  const TempFolder folder;
  in_child([&] {
    const bool mounted = unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=512k") == 0;
    if (!mounted) {
      std::printf("no file system can be mounted here: see FilesThatMayNotGrow\n");
      return;
    }
    fill_the_disk(kind(), folder.path().string(), false);
  });
  EXPECT_TRUE(folder.empty());
}

// A fixed kind takes its file with the first tokens: all of it or nothing.
TEST_P(FixedFileBadInput, ACapacityBeyondTheDisk) {
  const TempFolder folder;
  in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit most{300 << 10, 300 << 10};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &most), 0);
    Filled at(kind(), {kFull, kFull}, folder.path().string(), 2000);
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.append(3, 5), KVP_IO,
                                              {"disk_path '" + folder.path().string() + "'", " bytes are needed"}));
    ASSERT_EQ(at.append(1, 5), KVP_OK) << at.cache.text();  // one row fits
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
  });
  EXPECT_TRUE(folder.empty());
}

INSTANTIATE_TEST_SUITE_P(All, KindBadInput, ::testing::ValuesIn(kKinds), name_of);
INSTANTIATE_TEST_SUITE_P(All, OffloadedKindBadInput,
                         ::testing::ValuesIn(kinds_where([](const Kind& kind) { return kind.offloaded; })), name_of);
INSTANTIATE_TEST_SUITE_P(All, GrowingFileBadInput, ::testing::ValuesIn(kinds_where([](const Kind& kind) {
                           return kind.offloaded && !kind.fixed;
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, FixedFileBadInput, ::testing::ValuesIn(kinds_where([](const Kind& kind) {
                           return kind.offloaded && kind.fixed;
                         })),
                         name_of);

}  // namespace
}  // namespace kvplug::test
