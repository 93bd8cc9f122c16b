#include "scheduler/policy/method_choice.h"

#include <algorithm>
#include <cmath>

#include "scheduler/policy/loads.h"

namespace specfabric::scheduler {
namespace {

using speculation::VerificationMethod;

constexpr double kForget = 1.0 / 32;    // of what was known, with each sequence
constexpr int32_t kFewSequences = 2;    // that tell of a method
constexpr int32_t kManySequences = 64;  // from here on kForget alone decides
// Sequences that try a method which yields less, as a part of all, times what they lose.
constexpr double kBudget = 0.005;
constexpr int32_t kLeastBetween = 8;  // sequences between two that try a method
constexpr int32_t kLongAgo = 1 << 20;
constexpr int32_t kLeastRounds = 4;  // of a sequence that tells something
constexpr float kCool = 0.5, kWarm = 0.85;

// Of the trees that rejection verifies, traversal accepts as much or more (arXiv 2505.12398).
bool Considered(int method, uint32_t allowed) {
  const auto has = [&](int m) { return (allowed >> m & 1) != 0; };
  if (!has(method) || !speculation::Lossless(static_cast<VerificationMethod>(method))) return false;
  return method != static_cast<int>(VerificationMethod::kRejection) ||
         !has(static_cast<int>(VerificationMethod::kTraversal));
}

}  // namespace

int MethodChoice::TemperatureOf(float temperature) {
  return temperature < kCool ? 0 : temperature < kWarm ? 1 : 2;
}

// 1; 2 to 7; 8 to 31; 32 to 127; more.
int MethodChoice::WideLoadOf(int32_t running) {
  return std::min((LoadOf(running) + 1) / 2, kWideLoads - 1);
}

double MethodChoice::Rate(const Record& record, int32_t running, const StepTime& step) {
  const double rows = running * record.rows / record.rounds;
  const auto time = static_cast<double>(step.Predict(static_cast<int32_t>(std::lround(rows)), 0));
  return running * record.tokens / record.rounds / (record.waited / record.rounds + time);
}

const MethodChoice::Record& MethodChoice::Known(int method, int temperature, int load) const {
  const auto& by_load = records_[temperature];
  const auto used = [&](int l) { return by_load[l][method].sequences > 0; };
  return by_load[NearestLoad(load, kWideLoads, used).value_or(load)][method];
}

VerificationMethod MethodChoice::Choose(uint32_t allowed, float temperature, int32_t running,
                                        const StepTime& step) {
  const int t = TemperatureOf(temperature), load = WideLoadOf(running + 1);
  Records& records = records_[t][load];
  std::array<double, speculation::kVerificationMethods> rates = {};
  int best = -1, unknown = -1;
  for (int m = 0; m < speculation::kVerificationMethods; ++m) {
    if (!Considered(m, allowed)) continue;
    const Record& known = Known(m, t, load);
    // Sequences that have not ended yet tell nothing: one in a few tries what is unknown.
    if (known.sequences < kFewSequences && unknown < 0 &&
        (records[m].since_chosen == 0 || records[m].since_chosen >= kLeastBetween / 2)) {
      unknown = m;
    }
    if (known.sequences > 0) rates[m] = Rate(known, running + 1, step);
    if (best < 0 || rates[m] > rates[best]) best = m;
  }
  if (best < 0) return VerificationMethod::kCoupled;
  int chosen = unknown >= 0 ? unknown : best;
  for (int m = 0; unknown < 0 && m < speculation::kVerificationMethods; ++m) {
    if (m == best || rates[m] <= 0) continue;
    const double interval = std::max<double>(kLeastBetween, (1 - rates[m] / rates[best]) / kBudget);
    if (records[m].since_chosen > interval) chosen = m;
  }
  for (Record& record : records) {
    record.since_chosen = std::min(record.since_chosen + 1, kLongAgo);
  }
  records[chosen].since_chosen = 1;
  return static_cast<VerificationMethod>(chosen);
}

void MethodChoice::OnEnd(VerificationMethod verification, float temperature, int32_t running,
                         const MethodRounds& rounds) {
  if (rounds.rounds < kLeastRounds) return;
  Record& record = records_[TemperatureOf(temperature)][WideLoadOf(running + 1)]
                           [static_cast<size_t>(verification)];
  // The first few count as 1, 2, 3 and so on: what a method's trees yield is still learned in them.
  const auto before = static_cast<double>(record.sequences);
  const double keep = std::min(1 - kForget, before / (before + 2));
  record.sequences = std::min(record.sequences + 1, kManySequences);
  record.rounds = keep * record.rounds + rounds.rounds;
  record.tokens = keep * record.tokens + static_cast<double>(rounds.tokens);
  record.rows = keep * record.rows + static_cast<double>(rounds.rows);
  record.waited = keep * record.waited + static_cast<double>(rounds.waited);
}

}  // namespace specfabric::scheduler
