#include "gateway/sampling_defaults.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/temp_dir.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;

class SamplingDefaultsTest : public ::testing::Test {
 protected:
  absl::StatusOr<SamplingDefaults> Read(const std::string& text) {
    folder_.Write("generation_config.json", text);
    return ReadSamplingDefaults(folder_.path());
  }

  const base::TempDir folder_;
};

TEST_F(SamplingDefaultsTest, WithoutAFileThereAreNoDefaults) {
  EXPECT_EQ(ReadSamplingDefaults(folder_.path()).value(), SamplingDefaults());
}

TEST_F(SamplingDefaultsTest, ReadsTheFile) {
  const auto defaults = Read(R"({"bos_token_id": 1, "do_sample": false, "eos_token_id": [2, 3],
      "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.05,
      "max_new_tokens": 2048, "transformers_version": "4.51.0"})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(*defaults, (SamplingDefaults{.temperature = 0.6,
                                         .top_p = 0.95,
                                         .top_k = 20,
                                         .min_p = 0.0,
                                         .repetition_penalty = 1.05,
                                         .max_tokens = 2048}));
  EXPECT_EQ(Describe(*defaults),
            "temperature=0.6 top_p=0.95 top_k=20 repetition_penalty=1.05 max_new_tokens=2048");
}

TEST_F(SamplingDefaultsTest, OpenAiDefaultsAreNotDescribed) {
  const auto defaults = Read(R"({"temperature": 1.0, "top_p": 1, "top_k": 0, "min_p": null,
                                 "repetition_penalty": 1.0, "max_new_tokens": null})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(Describe(*defaults), "");
  EXPECT_EQ(Describe(Read(R"({"eos_token_id": 1})").value()), "");
  EXPECT_EQ(Describe(Read(R"({"top_k": -1})").value()), "");
}

TEST_F(SamplingDefaultsTest, MalformedFilesAreRefusedInOneLine) {
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {"", "is not a JSON object"},
           {"{", "is not a JSON object"},
           {"[]", "is not a JSON object"},
           {R"({"temperature": "warm"})", "'temperature' must be a number from 0 to 2"},
           {R"({"temperature": 3})", "got 3"},
           {R"({"top_p": 1.5})", "'top_p'"},
           {R"({"min_p": 1})", "'min_p'"},
           {R"({"top_k": 1.5})", "'top_k'"},
           {R"({"repetition_penalty": 0})", "'repetition_penalty'"},
           {R"({"max_new_tokens": 0})", "'max_new_tokens'"}}) {
    const auto defaults = Read(text);
    EXPECT_EQ(defaults.status().code(), absl::StatusCode::kInvalidArgument) << text;
    const std::string message(defaults.status().message());
    EXPECT_THAT(message, HasSubstr("generation_config.json"));
    EXPECT_THAT(message, HasSubstr(said));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace specfabric::gateway
