#ifndef SPECFABRIC_SCHEDULER_POLICY_METHOD_CHOICE_H_
#define SPECFABRIC_SCHEDULER_POLICY_METHOD_CHOICE_H_

// Which lossless verification method a sequence gets that leaves it to the target
// (--verification=auto): the one that yields the most output tokens a second, as far as the
// sequences that have ended tell. It is chosen once, when the sequence is added, so that it depends
// on nothing that is drawn for that sequence: what each method emits has the target's distribution
// whatever came before, and so has any choice among them by the past.
//
// The rate of a method is what `running` sequences of it would yield together,
//
//   running * tokens / (waited + step(running * rows)),
//
// with averages over the rounds of its last sequences: tokens of output and rows of a step a round,
// and the wait for the reply. Methods share steps, so that elapsed times cannot be told apart; rows
// and waits can. Averages are kept apart by load and by temperature, on both of which the order of
// the methods depends. Another method than the best is tried now and then, the more rarely the more
// that costs.
//
// Owned by the scheduler; one thread.

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "scheduler/policy/step_time.h"
#include "speculation/verification_method.h"

namespace specfabric::scheduler {

// The rounds of one sequence, added up.
struct MethodRounds {
  int32_t rounds = 0;
  int64_t tokens = 0;      // of output
  int64_t rows = 0;        // of steps
  base::Nanos waited = 0;  // for replies
};

class MethodChoice {
 public:
  // The method of a sequence that is added now, beside which `running` others run. allowed: a set
  // of bits 1 << VerificationMethod; those that are not lossless are left out, and rejection where
  // traversal is allowed.
  speculation::VerificationMethod Choose(uint32_t allowed, float temperature, int32_t running,
                                         const StepTime& step);
  // A sequence has ended that sampled at this temperature beside `running` others.
  void OnEnd(speculation::VerificationMethod verification, float temperature, int32_t running,
             const MethodRounds& rounds);

 private:
  static constexpr int kTemperatures = 3, kWideLoads = 5;
  // Averages over the last sequences, by rounds.
  struct Record {
    int32_t sequences = 0;
    double rounds = 0, tokens = 0, rows = 0, waited = 0;
    int32_t since_chosen = 0;  // choices
  };
  using Records = std::array<Record, speculation::kVerificationMethods>;

  static int TemperatureOf(float temperature);
  static int WideLoadOf(int32_t running);
  static double Rate(const Record& record, int32_t running, const StepTime& step);
  // What is known of this load, or else of the nearest at which the method was used.
  const Record& Known(int method, int temperature, int load) const;

  std::array<std::array<Records, kWideLoads>, kTemperatures> records_ = {};
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_METHOD_CHOICE_H_
