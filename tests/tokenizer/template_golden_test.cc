#include <gtest/gtest.h>

#include <fstream>

#include "tests/tokenizer/fixture.h"

namespace specfabric::tokenizer {
namespace {

// The file that make_template_golden.py wrote: small templates and Jinja2's results.
Json Golden() {
  std::ifstream file("tests/tokenizer/template_golden.json");
  return Json::parse(file);
}

absl::StatusOr<std::string> Rendered(const Json& golden, const Json& one) {
  return RenderTemplate(one["template"], golden["messages"].dump(), golden["variables"].dump());
}

bool IsAsJinja(const absl::StatusOr<std::string>& text, const Json& one) {
  return one.contains("text") ? text.ok() && *text == one["text"].get<std::string>() : !text.ok();
}

TEST(TemplateGoldenTest, RendersLikeJinja) {
  const Json golden = Golden();
  ASSERT_GT(golden["cases"].size(), 1000u);
  for (const Json& one : golden["cases"]) {
    const absl::StatusOr<std::string> text = Rendered(golden, one);
    EXPECT_TRUE(IsAsJinja(text, one))
        << one.dump() << "\nbut here: " << (text.ok() ? *text : text.status().ToString());
    EXPECT_NE(text.status().code(), absl::StatusCode::kInternal) << one.dump();
    EXPECT_EQ(text.status().message().find('\n'), std::string::npos) << text.status();
  }
}

// When a difference no longer exists, remove it from docs/tokenizer.md as well.
TEST(TemplateGoldenTest, TheKnownDifferencesStillExist) {
  const Json golden = Golden();
  for (const Json& one : golden["differs"]) {
    EXPECT_FALSE(IsAsJinja(Rendered(golden, one), one)) << one.dump();
  }
}

}  // namespace
}  // namespace specfabric::tokenizer
