#ifndef SPECFABRIC_TESTS_TOKENIZER_FIXTURE_H_
#define SPECFABRIC_TESTS_TOKENIZER_FIXTURE_H_

// The small checkpoints that make_fixtures.py wrote, with reference results of Hugging Face's
// libraries.

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/base/temp_dir.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::tokenizer {

// Keeps the order of members, because templates print them in order.
using Json = nlohmann::ordered_json;

std::vector<std::string> FixtureNames();
std::string FixtureDir(const std::string& name);

// Both end the test process with a message if the fixture is missing or broken.
std::unique_ptr<Tokenizer> LoadFixture(const std::string& name);
Json LoadGolden(const std::string& name);

class TempDir : public base::TempDir {
 public:
  // Copies tokenizer.json from a fixture.
  void CopyTokenizer(const std::string& fixture) const;
};

// LoadFixture for another folder.
std::unique_ptr<Tokenizer> LoadFrom(const TempDir& dir);

// Renders the template `source` for `messages`.
absl::StatusOr<std::string> RenderTemplate(const std::string& source, const std::string& messages,
                                           const std::string& variables = "");

// Up to `max_length` characters of all UTF-8 lengths, scripts, spaces and controls.
std::string RandomText(std::mt19937& rng, int max_length);

// Uses nlohmann's strict check, which is independent of the code under test.
bool IsUtf8(std::string_view text);

}  // namespace specfabric::tokenizer

#endif  // SPECFABRIC_TESTS_TOKENIZER_FIXTURE_H_
