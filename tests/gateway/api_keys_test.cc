#include "gateway/api_keys.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/temp_dir.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string ErrorOf(const std::string& text) {
  const auto keys = ApiKeys::Parse(text);
  return keys.ok() ? "none" : std::string(keys.status().message());
}

TEST(ApiKeysTest, AKeyALine) {
  const auto keys = ApiKeys::Parse("# people\nsk-one\n\n  sk-two \r\n#sk-three\nsk#four");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->size(), 3u);
  for (const char* key : {"sk-one", "sk-two", "sk#four"}) EXPECT_TRUE(keys->Has(key)) << key;
  for (const char* other : {"", "sk-on", "sk-one ", "sk-onee", "SK-ONE", "#sk-three", "sk-three",
                            "# people", "sk-one\nsk-two"}) {
    EXPECT_FALSE(keys->Has(other)) << other;
  }
}

TEST(ApiKeysTest, WhatIsNoKeyIsRefusedWithoutBeingShown) {
  for (const char* none : {"", "\n\n", "# nothing\n"})
    EXPECT_THAT(ErrorOf(none), HasSubstr("no key"));
  for (const std::string& bad :
       {std::string("sk secret"), std::string("secret\x01"), std::string("secr\xc3\xa9t"),
        std::string("secret\0x", 8), std::string(ApiKeys::kMaxKeyBytes + 1, 's')}) {
    EXPECT_THAT(ErrorOf("sk-one\n" + bad), HasSubstr("line 2 is no key"));
    EXPECT_THAT(ErrorOf(bad), Not(HasSubstr("sec")));
  }
  EXPECT_EQ(ErrorOf(std::string(ApiKeys::kMaxKeyBytes, 's')), "none");
}

TEST(ApiKeysTest, TooManyKeys) {
  std::string text;
  for (size_t i = 0; i < ApiKeys::kMaxKeys; ++i) absl::StrAppend(&text, "key-", i, "\n");
  EXPECT_EQ(ErrorOf(text), "none");
  EXPECT_THAT(ErrorOf(text + "another\n"), HasSubstr("line 1025 is one key too many"));
}

TEST(ApiKeyFileTest, IsReadAgainWhenItChanges) {
  const base::TempDir dir;
  dir.Write("keys", "first\n");
  const auto file = ApiKeyFile::Open(dir.File("keys"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Has("first"));
  dir.Write("keys", "first\nsecond\n");
  EXPECT_FALSE((*file)->Has("second")) << "not read yet";
  (*file)->Reload();
  EXPECT_TRUE((*file)->Has("second"));

  // A file that cannot be used leaves the keys as they were.
  dir.Write("keys", "# none\n");
  (*file)->Reload();
  EXPECT_TRUE((*file)->Has("second"));
  std::filesystem::remove(dir.File("keys"));
  (*file)->Reload();
  EXPECT_TRUE((*file)->Has("second"));

  // Another file in its place, as editors and mounted Secrets do it.
  dir.Write("next", "third\n");
  std::filesystem::rename(dir.File("next"), dir.File("keys"));
  (*file)->Reload();
  EXPECT_TRUE((*file)->Has("third"));
  EXPECT_FALSE((*file)->Has("first"));
}

TEST(ApiKeyFileTest, OneThatCannotBeUsedAtTheStartIsAnError) {
  const base::TempDir dir;
  const auto missing = ApiKeyFile::Open(dir.File("missing"));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("cannot read: No such file"));
  EXPECT_TRUE(absl::IsInvalidArgument(missing.status()));
  const auto folder = ApiKeyFile::Open(dir.path());
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("cannot read: Is a directory"));
  dir.Write("large", std::string(2 << 20, '\n'));
  const auto large = ApiKeyFile::Open(dir.File("large"));
  EXPECT_THAT(std::string(large.status().message()), HasSubstr("longer than 1048576 bytes"));
}

}  // namespace
}  // namespace specfabric::gateway
