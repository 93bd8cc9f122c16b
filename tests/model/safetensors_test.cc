#include "model/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/float16.h"
#include "nlohmann/json.hpp"
#include "tests/model/checkpoint_writer.h"

namespace specfabric::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string FileOf(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return absl::StrCat(std::string(reinterpret_cast<const char*>(&length), 8), header, data);
}

std::vector<float> Read(const Checkpoint& checkpoint, const std::string& name,
                        const std::vector<int64_t>& shape) {
  const absl::StatusOr<const StoredTensor*> tensor = checkpoint.Find(name, shape);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  if (!tensor.ok()) return {};
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  std::vector<float> values(count);
  ReadFloats(**tensor, 0, count, values.data());
  return values;
}

TEST(SafetensorsTest, ReadsAllThreeFloatTypes) {
  const TempDir dir;
  const float f32[] = {1.5f, -2.0f};
  const uint16_t bf16[] = {0x3F80, 0xC000};
  const uint16_t f16[] = {0x3C00, 0xC100, 0x0001, 0x7C00};
  std::string data(reinterpret_cast<const char*>(f32), 8);
  data.append(reinterpret_cast<const char*>(bf16), 4);
  data.append(reinterpret_cast<const char*>(f16), 8);
  WriteFile(dir.File("model.safetensors"), FileOf(R"({"__metadata__":{"format":"pt"},
                       "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                       "b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]},
                       "c":{"dtype":"F16","shape":[4],"data_offsets":[12,20]}})",
                                                  data));
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(Read(*checkpoint, "a", {2}), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(Read(*checkpoint, "b", {1, 2}), ElementsAre(1.0f, -2.0f));
  EXPECT_THAT(Read(*checkpoint, "c", {4}), ElementsAre(1.0f, -2.5f, std::ldexp(1.0f, -24),
                                                       std::numeric_limits<float>::infinity()));
  EXPECT_FALSE(checkpoint->Contains("d"));
}

// Against the definition: sign, 5 bits of exponent, 10 of fraction.
TEST(SafetensorsTest, WidensEveryFloat16) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const float got = WidenFloat16(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::signbit(got), (bits & 0x8000) != 0);
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(got), fraction != 0);
      ASSERT_EQ(std::isinf(got), fraction == 0);
      continue;
    }
    const double want =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(std::abs(got), want) << bits;
  }
}

TEST(SafetensorsTest, RoundsToNearestBFloat16TiesToEven) {
  std::mt19937 random(5);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const float got = WidenBFloat16(RoundToBFloat16(x));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(got));
      continue;
    }
    const uint32_t down_bits = std::bit_cast<uint32_t>(x) & 0xFFFF0000u;
    const double down = std::bit_cast<float>(down_bits);
    const float up_float = std::bit_cast<float>(down_bits + 0x10000);
    if (std::isinf(up_float) || std::isinf(x)) continue;
    const double below = std::abs(x - down), above = std::abs(up_float - double{x});
    const bool even = (down_bits & 0x10000) == 0;
    const double want = below < above || (below == above && even) ? down : up_float;
    ASSERT_EQ(got, want) << x;
  }
}

TEST(SafetensorsTest, JoinsShardsAndHashesContentNotLayout) {
  const NamedTensor a{"a", {3}, {1, 2, 3}}, b{"b", {2, 2}, {4, 5, 6, 7}};
  const TempDir whole, split;
  WriteSafetensors(whole.File("model.safetensors"), {b, a}, DataType::kFloat32);
  WriteSafetensors(split.File("part-1.safetensors"), {a}, DataType::kFloat32);
  WriteSafetensors(split.File("part-2.safetensors"), {b}, DataType::kFloat32);
  WriteFile(split.File("model.safetensors.index.json"),
            R"({"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}})");
  const absl::StatusOr<Checkpoint> one = Checkpoint::Open(whole.path()),
                                   two = Checkpoint::Open(split.path());
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_THAT(Read(*two, "b", {2, 2}), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(one->ContentHash(), two->ContentHash());

  // One bit of any element changes the hash.
  const uint64_t before = one->ContentHash();
  for (size_t i = 0; i < a.values.size(); ++i) {
    NamedTensor changed = a;
    changed.values[i] = std::nextafter(changed.values[i], 9.0f);
    const TempDir dir;
    WriteSafetensors(dir.File("model.safetensors"), {changed, b}, DataType::kFloat32);
    EXPECT_NE(Checkpoint::Open(dir.path())->ContentHash(), before);
  }
}

TEST(SafetensorsTest, WrongShapesAndTypesAreNamed) {
  const TempDir dir;
  WriteFile(dir.File("model.safetensors"),
            FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                       "i":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}})",
                   std::string(16, 'x')));
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const absl::Status missing = checkpoint->Find("b", {2}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no tensor 'b'"));
  const absl::Status shape = checkpoint->Find("a", {3, 1}).status();
  EXPECT_EQ(shape.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shape.message()), HasSubstr("has shape [2]"));
  EXPECT_THAT(std::string(shape.message()), HasSubstr("says [3, 1]"));
  EXPECT_THAT(std::string(checkpoint->Find("i", {1}).status().message()),
              HasSubstr("has dtype I64; allowed: F32, BF16, F16"));
}

TEST(SafetensorsTest, MalformedFilesAreRefused) {
  const std::string data(16, 'x');
  const auto entry = [](const std::string& fields) {
    return absl::StrCat("{\"t\":{", fields, "}}");
  };
  struct Case {
    std::string content, says;
  };
  const std::vector<Case> cases = {
      {"", "empty"},
      {"abc", "truncated"},
      {std::string(8, '\xff'), "truncated"},
      {std::string("\x40\0\0\0\0\0\0\0{}", 10), "truncated"},
      {FileOf("{\"t\":", data), "header: not a JSON object"},
      {FileOf("[]", data), "header: not a JSON object"},
      {FileOf("{\"t\":3}", data), "not described"},
      {FileOf(entry(R"("shape":[4],"data_offsets":[0,16])"), data), "no dtype"},
      {FileOf(entry(R"("dtype":"Q4","shape":[4],"data_offsets":[0,16])"), data), "\"Q4\""},
      {FileOf(entry(R"("dtype":"F32","data_offsets":[0,16])"), data), "shape"},
      {FileOf(entry(R"("dtype":"F32","shape":[-4],"data_offsets":[0,16])"), data), "shape"},
      {FileOf(entry(R"("dtype":"F32","shape":[4.0],"data_offsets":[0,16])"), data), "shape"},
      {FileOf(entry(R"("dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16])"),
              data),
       "shape"},
      {FileOf(entry(R"("dtype":"F32","shape":[4])"), data), "data_offsets"},
      {FileOf(entry(R"("dtype":"F32","shape":[4],"data_offsets":[0])"), data), "data_offsets"},
      {FileOf(entry(R"("dtype":"F32","shape":[4],"data_offsets":[16,0])"), data), "data_offsets"},
      {FileOf(entry(R"("dtype":"F32","shape":[4],"data_offsets":[-16,0])"), data), "data_offsets"},
      {FileOf(entry(R"("dtype":"F32","shape":[4],"data_offsets":[4,20])"), data), "truncated"},
      {FileOf(entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,16])"), data), "needs 12"},
      {FileOf(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},
                  "b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
              data),
       "'a' and 'b' overlap"},
  };
  for (const Case& bad : cases) {
    const TempDir dir;
    WriteFile(dir.File("model.safetensors"), bad.content);
    const absl::Status status = Checkpoint::Open(dir.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.says;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.says));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
}

// Whatever a damaged file says, opening it and hashing what it lists stays inside the file.
TEST(SafetensorsTest, RandomDamageIsSurvived) {
  const TempDir dir;
  const std::string path = dir.File("model.safetensors");
  WriteSafetensors(path, {{"a", {3, 5}, std::vector<float>(15)}, {"b", {7}, std::vector<float>(7)}},
                   DataType::kBFloat16);
  const std::string good = ReadFile(path);
  std::mt19937 random(7);
  int opened = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string bad = good;
    for (int n = random() % 3; n >= 0; --n)
      bad[random() % bad.size()] = static_cast<char>(random());
    if (i % 3 == 0) bad.resize(random() % bad.size());
    WriteFile(path, bad);
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
    if (!checkpoint.ok()) continue;
    ++opened;
    checkpoint->ContentHash();
  }
  EXPECT_GT(opened, 0);
  EXPECT_LT(opened, 1000);
}

TEST(SafetensorsTest, BadIndexesAndMissingFiles) {
  const TempDir dir;
  absl::Status status = Checkpoint::Open(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
  const std::string index = dir.File("model.safetensors.index.json");
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map": 3})", R"({"weight_map": {}})",
        R"({"weight_map": {"a": 3}})", R"({"weight_map": {"a": "../other/model.safetensors"}})"}) {
    WriteFile(index, text);
    EXPECT_EQ(Checkpoint::Open(dir.path()).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  WriteFile(index, R"({"weight_map": {"a": "part-1.safetensors"}})");
  status = Checkpoint::Open(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("part-1.safetensors"));

  // A tensor that the shard it is assigned to lacks, though another has it.
  WriteSafetensors(dir.File("part-1.safetensors"), {{"a", {1}, {1}}}, DataType::kFloat32);
  WriteSafetensors(dir.File("part-2.safetensors"), {{"b", {1}, {1}}}, DataType::kFloat32);
  WriteFile(index, R"({"weight_map": {"a": "part-2.safetensors", "b": "part-2.safetensors"}})");
  status = Checkpoint::Open(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tensor \"a\" is not in the file it is assigned to, "
                        "\"part-2.safetensors\""));
  // In both, and assigned to neither.
  WriteSafetensors(dir.File("part-2.safetensors"), {{"a", {1}, {1}}, {"b", {1}, {1}}},
                   DataType::kFloat32);
  WriteSafetensors(dir.File("part-1.safetensors"), {{"a", {1}, {1}}, {"c", {1}, {1}}},
                   DataType::kFloat32);
  WriteFile(index, R"({"weight_map": {"b": "part-2.safetensors", "c": "part-1.safetensors"}})");
  status = Checkpoint::Open(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"a\" is in two files"));
}

TEST(SafetensorsTest, TheIndexChoosesAmongShardsThatHoldATensor) {
  const TempDir dir;
  WriteSafetensors(dir.File("one.safetensors"), {{"a", {1}, {1}}, {"b", {1}, {2}}},
                   DataType::kFloat32);
  WriteSafetensors(dir.File("two.safetensors"),
                   {{"a", {2}, {3, 4}}, {"b", {1}, {5}}, {"unlisted", {1}, {6}}},
                   DataType::kFloat32);
  // Not named by the index: not even opened.
  WriteFile(dir.File("three.safetensors"), "not a checkpoint");
  const std::string index = dir.File("model.safetensors.index.json");
  WriteFile(index, R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(Read(*checkpoint, "a", {1}), ElementsAre(1));
  EXPECT_THAT(Read(*checkpoint, "b", {1}), ElementsAre(5));
  EXPECT_THAT(Read(*checkpoint, "unlisted", {1}), ElementsAre(6));
  WriteFile(index, R"({"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}})");
  checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(Read(*checkpoint, "a", {2}), ElementsAre(3, 4));
  EXPECT_THAT(Read(*checkpoint, "b", {1}), ElementsAre(2));
}

// As in transformers.
TEST(SafetensorsTest, OneFileGoesBeforeAnIndexAndIsSaid) {
  const TempDir dir;
  WriteSafetensors(dir.File("model.safetensors"), {{"a", {1}, {1}}}, DataType::kFloat32);
  WriteSafetensors(dir.File("part.safetensors"), {{"a", {1}, {2}}}, DataType::kFloat32);
  ASSERT_TRUE(Checkpoint::Open(dir.path()).ok());
  EXPECT_TRUE(Checkpoint::Open(dir.path())->notes().empty());
  WriteFile(dir.File("model.safetensors.index.json"),
            R"({"weight_map": {"a": "part.safetensors"}})");
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(Read(*checkpoint, "a", {1}), ElementsAre(1));
  ASSERT_EQ(checkpoint->notes().size(), 1u);
  EXPECT_THAT(checkpoint->notes()[0], HasSubstr("both model.safetensors and"));
}

TEST(SafetensorsTest, ShardsOutsideTheFolderAreRefused) {
  const TempDir outside;
  WriteSafetensors(outside.File("a.safetensors"), {{"a", {1}, {1}}}, DataType::kFloat32);
  const TempDir dir;
  WriteSafetensors(dir.File("a.safetensors"), {{"a", {1}, {1}}}, DataType::kFloat32);
  std::filesystem::create_directory(dir.File("sub"));
  WriteSafetensors(dir.File("sub/a.safetensors"), {{"a", {1}, {1}}}, DataType::kFloat32);
  for (const std::string& shard :
       {outside.File("a.safetensors"), std::string("../a.safetensors"), std::string(".."),
        std::string("."), std::string("sub/a.safetensors"), std::string("./a.safetensors"),
        std::string("a.safetensors\0.txt", 18), std::string()}) {
    const nlohmann::json index = {{"weight_map", {{"a", shard}}}};
    WriteFile(dir.File("model.safetensors.index.json"), index.dump());
    const absl::Status status = Checkpoint::Open(dir.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << shard;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the name of a file beside the index"));
  }
  // The caches of model hubs are links to files elsewhere.
  std::filesystem::create_symlink(outside.File("a.safetensors"), dir.File("link.safetensors"));
  WriteFile(dir.File("model.safetensors.index.json"),
            R"({"weight_map": {"a": "link.safetensors"}})");
  EXPECT_TRUE(Checkpoint::Open(dir.path()).ok());
}

// A file that a process writes to would be waited for.
TEST(SafetensorsTest, PipesAreRefused) {
  const TempDir dir;
  ASSERT_EQ(mkfifo(dir.File("model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(std::string(Checkpoint::Open(dir.path()).status().message()),
              HasSubstr("not a regular file"));
}

// Which of two entries of one name is meant, nothing says.
TEST(SafetensorsTest, NamesThatOccurTwiceAreRefused) {
  const TempDir dir;
  WriteFile(dir.File("model.safetensors"),
            FileOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                       "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                   std::string(8, 'x')));
  absl::Status status = Checkpoint::Open(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("key \"a\" occurs twice"));

  std::filesystem::remove(dir.File("model.safetensors"));
  WriteSafetensors(dir.File("one.safetensors"), {{"a", {1}, {1}}}, DataType::kFloat32);
  WriteSafetensors(dir.File("two.safetensors"), {{"a", {1}, {1}}}, DataType::kFloat32);
  WriteFile(dir.File("model.safetensors.index.json"),
            R"({"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}})");
  status = Checkpoint::Open(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("key \"a\" occurs twice"));
}

// Processor time, so that other processes do not count; four times the entries may take eight times
// as long, where work for each pair of entries would take sixteen times.
TEST(SafetensorsTest, OpeningTakesTimeInProportionToTheEntries) {
  const auto time_of = [](int entries) {
    const TempDir dir;
    nlohmann::json map = nlohmann::json::object();
    std::array<nlohmann::json, 2> headers = {nlohmann::json::object(), nlohmann::json::object()};
    for (int i = 0; i < entries; ++i) {
      const std::string name = absl::StrCat("model.layers.", i, ".weight");
      map[name] = i % 2 == 0 ? "one.safetensors" : "two.safetensors";
      headers[i % 2][name] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
    }
    WriteFile(dir.File("one.safetensors"), FileOf(headers[0].dump(), "x"));
    WriteFile(dir.File("two.safetensors"), FileOf(headers[1].dump(), "x"));
    WriteFile(dir.File("model.safetensors.index.json"), nlohmann::json{{"weight_map", map}}.dump());
    std::clock_t least = std::numeric_limits<std::clock_t>::max();
    for (int i = 0; i < 3; ++i) {
      const std::clock_t before = std::clock();
      const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
      least = std::min(least, std::clock() - before);
      EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
      EXPECT_EQ(checkpoint->tensors().size(), static_cast<size_t>(entries));
    }
    return static_cast<double>(least);
  };
  EXPECT_LT(time_of(100'000), 8 * time_of(25'000));
}

}  // namespace
}  // namespace specfabric::model
