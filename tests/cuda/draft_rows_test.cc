// Draft rows that the device computes, draws from and validates, against sampling/draft_row.h and
// speculation/draft_probs.h.

#include "verification/cuda/draft_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "sampling/draft_row.h"
#include "speculation/draft_probs.h"
#include "tests/cuda/open_device.h"
#include "tests/cuda/shuffle.h"
#include "tests/verification/random_rounds.h"
#include "verification/cuda/draft_row_maker.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::DeviceArray;
using base::cuda::LogitMatrix;
using base::cuda::OpenDeviceTest;

using sampling::DraftRowFacts;
using speculation::DraftProbs;
using speculation::DraftProbsShape;
using speculation::SiblingDraw;
using verification::Logits;
using verification::ProbRow;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr SiblingDraw kDraws[] = {SiblingDraw::kWithReplacement, SiblingDraw::kWithoutReplacement};

struct Row {
  Logits logits = {};
  base::SamplingParams sampling = {};
  int32_t top_n = 0;
  SiblingDraw draw = SiblingDraw::kWithoutReplacement;
  int32_t siblings = 4;
  sampling::DrawSite site = {.purpose = sampling::Purpose::kDraft};

  DraftProbsShape shape(int32_t rows = 1) const {
    return speculation::ShapeFor(rows, static_cast<int32_t>(logits.size()), top_n);
  }
};

// The results of one draw: the bytes of the row that are sent, and the tokens drawn.
struct Made {
  std::vector<uint8_t> bytes = {};
  double total = 0;
  std::vector<base::TokenId> tokens = {};
  std::vector<uint16_t> draft_probs = {};
  bool operator==(const Made&) const = default;
};

Made OnCpu(const Row& row) {
  ProbRow draft_probs(row.logits.size());
  sampling::MakeDraftProbs(row.logits, row.sampling, row.top_n, absl::MakeSpan(draft_probs));
  Made made = {.bytes = std::vector<uint8_t>(row.shape().bytes()),
               .total = sampling::TotalProb(draft_probs)};
  std::vector<uint64_t> slot((made.bytes.size() + 7) / 8);
  speculation::DraftProbsWriter(row.shape(), reinterpret_cast<uint8_t*>(slot.data()))
      .Write(0, draft_probs);
  std::memcpy(made.bytes.data(), slot.data(), made.bytes.size());
  made.tokens =
      row.draw == SiblingDraw::kWithReplacement
          ? sampling::DrawWithReplacement(draft_probs, row.siblings, row.sampling.seed, row.site)
          : sampling::DrawWithoutReplacement(draft_probs, row.siblings, row.sampling.seed,
                                             row.site);
  for (base::TokenId token : made.tokens) made.draft_probs.push_back(draft_probs[token]);
  return made;
}

Row RandomRow(std::mt19937* random, int vocabulary, float spread) {
  Row row = {.logits = verification::RandomLogits(random, vocabulary, spread),
             .sampling = verification::RandomSampling(random),
             .draw = kDraws[(*random)() % 2],
             .siblings = 1 + static_cast<int32_t>((*random)() % 6)};
  if ((*random)() % 8 == 0) row.sampling.temperature = 0;
  row.sampling.seed = (*random)() * uint64_t{0x100000001};
  row.site.position = (*random)() % 5000;
  row.site.draw = (*random)();
  row.site.node = (*random)() % 64;
  return row;
}

class DraftRowsTest : public OpenDeviceTest {
 protected:
  void SetUp() override {
    OpenDeviceTest::SetUp();
    if (device_ != nullptr) maker_.emplace(device_.get());
  }

  // All of one vocabulary; the logit rows are in reverse order and wider than the vocabulary.
  absl::StatusOr<std::vector<Made>> OnDevice(const std::vector<Row>& rows) {
    const size_t vocabulary = rows[0].logits.size(), stride = vocabulary + 5;
    std::vector<float> values(rows.size() * stride, kNan);
    std::vector<RowDraw> draws;
    size_t bytes = 0;
    for (const Row& row : rows) {
      const size_t place = rows.size() - 1 - draws.size();
      std::copy(row.logits.begin(), row.logits.end(), values.begin() + place * stride);
      draws.push_back({.logit = static_cast<int32_t>(place),
                       .sampling = row.sampling,
                       .top_n = row.top_n,
                       .entries = row.shape().entries,
                       .draw = row.draw,
                       .siblings = row.siblings,
                       .site = row.site});
      bytes += (row.shape().bytes() + 7) / 8 * 8;
    }
    DeviceArray<float> logits(values);
    DeviceArray<uint8_t> slots(bytes);
    bytes = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      draws[i].row = slots.data() + bytes;
      bytes += (rows[i].shape().bytes() + 7) / 8 * 8;
    }
    const LogitMatrix matrix = {.logits = logits.data(),
                                .stride = static_cast<int64_t>(stride),
                                .size = static_cast<int32_t>(vocabulary)};
    std::vector<DrawnRow> drawn(rows.size());
    absl::Status status = maker_->Draw(matrix, draws, absl::MakeSpan(drawn));
    if (!status.ok()) return status;
    const std::vector<uint8_t> written = slots.Read();
    std::vector<Made> made;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto first = written.begin() + (draws[i].row - slots.data());
      Made& of_row = made.emplace_back();
      of_row.bytes.assign(first, first + rows[i].shape().bytes());
      of_row.total = drawn[i].total;
      for (int32_t s = 0; s < drawn[i].count; ++s) {
        of_row.tokens.push_back(drawn[i].siblings[s].token);
        of_row.draft_probs.push_back(drawn[i].siblings[s].prob);
      }
    }
    return made;
  }

  void ExpectTheCpus(const std::vector<Row>& rows) {
    base::cuda::ShuffleThreads(1);
    const absl::StatusOr<std::vector<Made>> made = OnDevice(rows);
    ASSERT_TRUE(made.ok()) << made.status();
    base::cuda::ShuffleThreads(2);
    const absl::StatusOr<std::vector<Made>> again = OnDevice(rows);
    ASSERT_TRUE(again.ok() && *again == *made);
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "row " << i << " of " << rows.size() << ", vocabulary "
                                      << rows[i].logits.size() << ", top_n " << rows[i].top_n);
      const Made expected = OnCpu(rows[i]);
      ASSERT_EQ((*made)[i].tokens, expected.tokens);
      ASSERT_EQ((*made)[i].draft_probs, expected.draft_probs);
      ASSERT_EQ((*made)[i].total, expected.total);
      ASSERT_TRUE((*made)[i].bytes == expected.bytes);
    }
  }

  // The device and the CPU must agree about the same bytes.
  void ExpectValidatedAlike(const DraftProbsShape& shape, const std::vector<uint8_t>& bytes,
                            std::string* refused) {
    std::vector<uint64_t> slot((bytes.size() + 7) / 8);
    std::memcpy(slot.data(), bytes.data(), bytes.size());
    DeviceArray<uint64_t> there(slot);
    const auto* device = reinterpret_cast<const uint8_t*>(there.data());
    std::vector<DraftRowFacts> facts(shape.rows), again(shape.rows);
    for (auto* found : {&facts, &again}) {
      base::cuda::ShuffleThreads(found == &facts ? 1 : 2);
      ASSERT_TRUE(
          maker_->Validate(device, shape.vocabulary, shape.entries, absl::MakeSpan(*found)).ok());
    }
    for (int32_t row = 0; row < shape.rows; ++row) {
      ASSERT_EQ(std::bit_cast<uint64_t>(again[row].total),
                std::bit_cast<uint64_t>(facts[row].total));
      ASSERT_EQ(again[row].highest, facts[row].highest);
      ASSERT_EQ(again[row].misplaced, facts[row].misplaced);
    }
    const auto on_device = DraftProbs::OpenOnDevice(shape, {device, bytes.size()}, facts);
    const auto here =
        DraftProbs::Open(shape, {reinterpret_cast<const uint8_t*>(slot.data()), bytes.size()});
    ASSERT_EQ(on_device.status(), here.status());
    if (here.ok()) {
      ASSERT_TRUE(on_device->on_device());
      ASSERT_EQ(on_device->totals(), here->totals());
    }
    *refused = std::string(here.status().message());
  }

  std::optional<DraftRowMaker> maker_;
};

TEST_F(DraftRowsTest, AreMadeAndDrawnFromAsOnTheCpu) {
  std::mt19937 random(1);
  for (int vocabulary : {1, 2, 17, 300, 1024, 2051}) {
    for (int top_n : {0, 1, 7, 64}) {
      std::vector<Row> rows;
      for (int i = 0; i < 12; ++i) {
        // Narrow distributions have many equal probabilities, some of which top_n cuts.
        Row row = RandomRow(&random, vocabulary, i % 3 == 0 ? 0.02f : 4.0f);
        row.top_n = top_n;
        rows.push_back(std::move(row));
      }
      ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(rows));
    }
  }
}

// Rows of more than one tile of a total, and of an odd length, so that most are not aligned.
TEST_F(DraftRowsTest, LongRowsAreMadeAndValidatedAsOnTheCpu) {
  std::mt19937 random(5);
  constexpr int kVocabulary = 33'003;
  std::vector<Row> rows;
  std::vector<uint8_t> bytes;
  for (int i = 0; i < 4; ++i) {
    rows.push_back(RandomRow(&random, kVocabulary, 3.0f));
    const Made made = OnCpu(rows.back());
    bytes.insert(bytes.end(), made.bytes.begin(), made.bytes.end());
  }
  ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(rows));
  std::string refused;
  ASSERT_NO_FATAL_FAILURE(ExpectValidatedAlike(rows[0].shape(4), bytes, &refused));
  EXPECT_EQ(refused, "");
}

TEST_F(DraftRowsTest, ManyRowsAreMadeAndDrawnFromAsOnTheCpu) {
  std::mt19937 random(6);
  std::vector<Row> rows;
  for (int i = 0; i < 513; ++i) rows.push_back(RandomRow(&random, 35, 2.0f));
  ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(rows));
}

// Until nothing is left.
TEST_F(DraftRowsTest, AllTokensAreDrawnAsOnTheCpu) {
  std::mt19937 random(7);
  std::vector<Row> rows;
  for (int i = 0; i < 8; ++i) {
    rows.push_back(RandomRow(&random, 40, i % 2 == 0 ? 1.0f : 20.0f));
    rows.back().siblings = 60;
  }
  ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(rows));
}

// Tokens where the random number lies so near to the border between two that only sums in the right
// order tell on which side it is: of a million equal ones, one number in a million does.
TEST_F(DraftRowsTest, BordersBetweenTokensAreThoseOfTheCpu) {
  constexpr int kVocabulary = 1'000'003;
  Row row = {
      .logits = Logits(kVocabulary, 0.0f), .draw = SiblingDraw::kWithReplacement, .siblings = 1};
  std::vector<Row> rows;
  for (uint32_t draw = 0; draw < 8'000'000 && rows.size() < 2; ++draw) {
    row.site.draw = draw;
    const double wanted = kVocabulary * sampling::SiblingUniform(row.sampling.seed, row.site, 0);
    if (std::abs(wanted - std::round(wanted)) < kVocabulary * 0x1p-40) rows.push_back(row);
  }
  ASSERT_FALSE(rows.empty());
  ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(rows));
}

TEST_F(DraftRowsTest, OddLogitsMatchTheCpu) {
  std::vector<Row> rows;
  for (const Logits& logits : std::vector<Logits>{{kNan, 1, 2, -kInf},
                                                  {0, kInf, 3, kNan},
                                                  {kInf, kInf, 0, kInf},
                                                  {kNan, kNan, kNan, kNan},
                                                  {kNan, -kInf, -kInf, -kInf},
                                                  {-kInf, -kInf, -kInf, -kInf},
                                                  {-0.0f, 0.0f, -1e30f, 1e-30f}}) {
    for (float temperature : {0.0f, 1e-20f, 1.0f}) {
      for (SiblingDraw draw : kDraws) {
        rows.push_back({.logits = logits, .sampling = {.temperature = temperature}, .draw = draw});
        rows.push_back(rows.back());
        rows.back().sampling.top_k = 2;
        rows.push_back(rows.back());
        rows.back().sampling.min_p = 0.5f;
      }
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(rows));
}

TEST_F(DraftRowsTest, InvalidDrawsAreRefused) {
  EXPECT_TRUE(maker_->Draw({}, {}, {}).ok());
  std::mt19937 random(3);
  const Row sound = RandomRow(&random, 9, 1.0f);
  for (int wrong = 0; wrong < 3; ++wrong) {
    Row row = sound;
    if (wrong == 0) row.siblings = 0;
    if (wrong == 1) row.siblings = speculation::kMaxDraftNodes;
    if (wrong == 2) row.draw = SiblingDraw::kDeterministic;
    EXPECT_EQ(OnDevice({row}).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  ASSERT_NO_FATAL_FAILURE(ExpectTheCpus({sound}));
}

TEST_F(DraftRowsTest, SentRowsAreValidatedAsOnTheCpu) {
  std::mt19937 random(4);
  int sound = 0, unsound = 0;
  for (int vocabulary : {5, 300, 2051}) {
    for (int top_n : {0, 1, 40}) {
      for (int turn = 0; turn < 60; ++turn) {
        Row row = RandomRow(&random, vocabulary, 2.0f);
        row.top_n = top_n;
        const DraftProbsShape shape = row.shape(3);
        std::vector<uint8_t> bytes;
        for (int r = 0; r < shape.rows; ++r) {
          row.logits = verification::RandomLogits(&random, vocabulary, 2.0f);
          const Made made = OnCpu(row);
          bytes.insert(bytes.end(), made.bytes.begin(), made.bytes.end());
        }
        // A changed byte, as an untrusted peer might send it, or a row of zeros.
        if (turn % 3 == 1) bytes[random() % bytes.size()] ^= 1u << random() % 8;
        if (turn % 3 == 2) {
          const size_t ids = shape.whole() ? 0 : shape.entries * sizeof(base::TokenId);
          std::fill_n(bytes.begin() + shape.row_bytes() + ids, shape.entries * sizeof(uint16_t),
                      uint8_t{0});
        }
        std::string refused;
        ASSERT_NO_FATAL_FAILURE(ExpectValidatedAlike(shape, bytes, &refused));
        (refused.empty() ? sound : unsound) += 1;
      }
    }
  }
  EXPECT_GT(sound, 180);
  EXPECT_GT(unsound, 180);
}

TEST_F(DraftRowsTest, EveryFaultIsNamedAsOnTheCpu) {
  const DraftProbsShape cut = {.rows = 2, .vocabulary = 100, .entries = 3};
  const DraftProbsShape whole = {.rows = 2, .vocabulary = 3, .entries = 3};
  struct Fault {
    std::vector<int32_t> ids;
    std::vector<uint16_t> draft_probs;
    const char* why;
  };
  for (const Fault& fault : std::vector<Fault>{
           {{0, 1, 99}, {0x3F80, 0, 0x0001}, ""},
           {{-1, 1, 2}, {0x3F80, 0, 0}, "draft_probs: row 1: id -1 after -1, must"},
           {{0, 1, 100}, {0x3F80, 0, 0}, "draft_probs: row 1: id 100 after 1, must"},
           {{5, 5, 4}, {0x3F80, 0, 0}, "draft_probs: row 1: id 5 after 5, must"},
           {{0, 1, 2}, {0x3F80, 0x7F80, 0}, "draft_probs: row 1: has one that is not finite"},
           {{0, 1, 2}, {0x3F80, 0, 0x7FC1}, "draft_probs: row 1: has one that is not finite"},
           {{0, 1, 2}, {0x3F80, 0x8001, 0}, "draft_probs: row 1: has one that is not finite"},
           {{0, 1, 2}, {0, 0, 0}, "draft_probs: row 1: has none above 0"}}) {
    for (const DraftProbsShape& shape : {cut, whole}) {
      if (shape.whole() && absl::StrContains(fault.why, "id ")) continue;
      const std::vector<int32_t> good_ids = {7, 8, 9};
      const std::vector<uint16_t> valid_probs = {0x3F80, 0x3F00, 0};
      std::vector<uint8_t> bytes(shape.bytes(), 0);
      for (int row = 0; row < 2; ++row) {
        uint8_t* place = bytes.data() + row * shape.row_bytes();
        if (!shape.whole()) {
          std::memcpy(place, (row == 0 ? good_ids : fault.ids).data(), 12);
          place += 12;
        }
        std::memcpy(place, (row == 0 ? valid_probs : fault.draft_probs).data(), 6);
      }
      std::string refused;
      ASSERT_NO_FATAL_FAILURE(ExpectValidatedAlike(shape, bytes, &refused));
      EXPECT_TRUE(absl::StartsWith(refused, fault.why) && refused.empty() == (*fault.why == '\0'))
          << refused;
    }
  }
}

TEST(DraftRowLayoutTest, IsThatOfDraftProbs) {
  for (int32_t vocabulary : {1, 2, 7, 100}) {
    for (int32_t entries = 1; entries <= vocabulary; ++entries) {
      const DraftProbsShape shape = {1, vocabulary, entries};
      const DraftRowLayout layout = {vocabulary, entries};
      EXPECT_EQ(layout.whole(), shape.whole());
      EXPECT_EQ(layout.row_bytes(), static_cast<int64_t>(shape.row_bytes()));
    }
  }
}

}  // namespace
}  // namespace specfabric::verification::cuda
