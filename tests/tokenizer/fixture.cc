#include "tests/tokenizer/fixture.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

namespace specfabric::tokenizer {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::cerr << message << '\n';
  std::abort();
}

void AppendUtf8(uint32_t character, std::string* text) {
  const auto continuation = [&](int shift) {
    text->push_back(static_cast<char>(0x80 | ((character >> shift) & 0x3F)));
  };
  if (character < 0x80) {
    text->push_back(static_cast<char>(character));
  } else if (character < 0x800) {
    text->push_back(static_cast<char>(0xC0 | (character >> 6)));
  } else if (character < 0x10000) {
    text->push_back(static_cast<char>(0xE0 | (character >> 12)));
    continuation(6);
  } else {
    text->push_back(static_cast<char>(0xF0 | (character >> 18)));
    continuation(12);
    continuation(6);
  }
  if (character >= 0x80) continuation(0);
}

}  // namespace

std::vector<std::string> FixtureNames() {
  return {"byte_level_split",   "byte_level_words", "byte_fallback_prefix",
          "byte_fallback_bare", "metaspace",        "word_piece",
          "plain_words",        "word_ends",        "whole_text"};
}

std::string FixtureDir(const std::string& name) { return "tests/tokenizer/fixtures/" + name; }

std::unique_ptr<Tokenizer> LoadFixture(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(FixtureDir(name));
  if (!tokenizer.ok()) Die(tokenizer.status().ToString());
  return *std::move(tokenizer);
}

Json LoadGolden(const std::string& name) {
  std::ifstream file(FixtureDir(name) + "/golden.json");
  if (!file) Die("no golden.json for " + name);
  return Json::parse(file);
}

void TempDir::CopyTokenizer(const std::string& fixture) const {
  std::filesystem::copy_file(FixtureDir(fixture) + "/tokenizer.json", File("tokenizer.json"));
}

std::unique_ptr<Tokenizer> LoadFrom(const TempDir& dir) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(dir.path());
  if (!tokenizer.ok()) Die(tokenizer.status().ToString());
  return *std::move(tokenizer);
}

absl::StatusOr<std::string> RenderTemplate(const std::string& source, const std::string& messages,
                                           const std::string& variables) {
  TempDir dir;
  dir.CopyTokenizer("plain_words");
  dir.Write("chat_template.jinja", source);
  return LoadFrom(dir)->ApplyChatTemplate(messages, false, {}, variables);
}

std::string RandomText(std::mt19937& rng, int max_length) {
  // First character and size of the ranges drawn from, none of which holds a surrogate.
  constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {' ', 1},         {'\n', 1},        {'a', 26},      {0x00, 0x80},
      {0x80, 0x700},    {0x4E00, 0x100},  {0x0E00, 0x5F}, {0x800, 0xD000},
      {0xE000, 0x2000}, {0x1F300, 0x300}, {0x200B, 5},    {0x10000, 0x100000},
  };
  std::string text;
  for (int left = static_cast<int>(rng() % (max_length + 1)); left > 0; --left) {
    const auto& [first, size] = kRanges[rng() % std::size(kRanges)];
    AppendUtf8(first + rng() % size, &text);
  }
  return text;
}

bool IsUtf8(std::string_view text) {
  try {
    nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
  return true;
}

}  // namespace specfabric::tokenizer
