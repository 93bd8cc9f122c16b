#ifndef SPECFABRIC_SPECULATION_FAN_OUT_H_
#define SPECFABRIC_SPECULATION_FAN_OUT_H_

// How many outcomes to prepare for while a chain of draft tokens is verified (SSD, arXiv
// 2603.03251; verification.md section 8). An outcome is the number k of draft tokens accepted and
// the token that follows. With each draft token accepted with chance `acceptance`, k < levels has
// chance a^k (1 - a), and all of them a^levels; the token after them is missed by the likeliest F
// candidates with chance F^-falloff. Pure.

#include <cstdint>
#include <vector>

namespace specfabric::speculation {

// F_0 .. F_levels, summing to `budget`, where hits are likeliest: in proportion to
// a^(k / (1 + r)), the last also to (1 - a)^(-1 / (1 + r)).
std::vector<double> GeometricFanOut(double acceptance, double falloff, int levels, double budget);
// The best whole numbers. Every outcome gets one candidate first, as far as they go, the likeliest
// before others.
std::vector<int32_t> WholeFanOut(double acceptance, double falloff, int levels, int32_t budget);
std::vector<int32_t> UniformFanOut(int levels, int32_t budget);

// The chance that the outcome was prepared for.
double FanOutHitRate(double acceptance, double falloff, const std::vector<double>& fan_out);

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_FAN_OUT_H_
