#include "model/cpu/compressed_panels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

namespace specfabric::model::cpu {
namespace {

constexpr int kWords = 2 * kPanelOutputs;  // of a step
constexpr int kBytes = 256;
constexpr int kCodes = 16;
constexpr int kNoCode = kCodes;
// One in so many steps may be kept as it is: it takes its place among the codes all the same, and
// a branch that is not foreseen.
constexpr int64_t kFewestPerVerbatim = 16;

int HighByte(uint16_t word) { return word >> 8; }

// Which high byte each code stands for, and the other way round.
struct Table {
  std::array<uint8_t, kCodes> bytes;
  std::array<uint8_t, kBytes> codes;  // kNoCode: none
};

Table TableOf(const uint16_t* words, int64_t count) {
  std::array<int64_t, kBytes> counts = {};
  for (int64_t i = 0; i < count; ++i) ++counts[HighByte(words[i])];
  std::array<uint8_t, kBytes> order;
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::partial_sort(order.begin(), order.begin() + kCodes, order.end(),
                    [&](int a, int b) { return counts[a] > counts[b]; });
  Table table;
  table.codes.fill(kNoCode);
  for (int code = 0; code < kCodes; ++code) {
    table.bytes[code] = order[code];
    table.codes[order[code]] = static_cast<uint8_t>(code);
  }
  return table;
}

// Where the kernel's unpacking takes word `word` of a step from: it takes the first eight of each
// 16 bytes to the first 16 outputs, the others to the other outputs.
int PlaceOf(int word) {
  const int half = word / kPanelOutputs, in_half = word % kPanelOutputs;
  return in_half / 8 * 16 + half * 8 + in_half % 8;
}

// lows, codes: [kWords]. False where a weight has no code.
bool Encode(const Table& table, const uint16_t* words, uint8_t* lows, uint8_t* codes) {
  int most = 0;
  for (int i = 0; i < kWords; ++i) {
    const uint8_t code = table.codes[HighByte(words[i])];
    most = std::max<int>(most, code);
    lows[PlaceOf(i)] = static_cast<uint8_t>(words[i]);
    codes[PlaceOf(i)] = code;
  }
  return most != kNoCode;
}

struct Verbatim {
  std::vector<int32_t> steps;
  std::vector<uint16_t> words;
};

void CompressPanel(const uint16_t* raw, int parts, int steps, std::byte* to, Verbatim* verbatim) {
  const Table table = TableOf(raw, int64_t{parts} * steps * kWords);
  for (int i = 0; i < kTableBytes; ++i) {
    to[i] = static_cast<std::byte>(table.bytes[static_cast<size_t>(i % kCodes)]);
  }
  to += kTableBytes;
  for (int step = 0; step < parts * steps; ++step, raw += kWords) {
    const int in_part = step % steps;
    std::byte* group = to + (size_t{static_cast<uint32_t>(step / steps)} * ((steps + 1) / 2) +
                             static_cast<size_t>(in_part / 2)) *
                                kGroupBytes;
    std::array<uint8_t, kWords> lows, codes;
    if (!Encode(table, raw, lows.data(), codes.data())) {
      verbatim->steps.push_back(step);
      verbatim->words.insert(verbatim->words.end(), raw, raw + kWords);
      continue;
    }
    const int odd = in_part % 2;
    std::memcpy(group + odd * sizeof(lows), lows.data(), sizeof(lows));
    for (int i = 0; i < kWords; ++i) {
      group[2 * sizeof(lows) + i] |= static_cast<std::byte>(codes[i] << 4 * odd);
    }
  }
}

}  // namespace

absl::StatusOr<std::optional<CompressedPanels>> CompressedPanels::Compress(const uint16_t* raw,
                                                                           int panels, int parts,
                                                                           int steps,
                                                                           ThreadPool* pool) {
  CompressedPanels compressed;
  compressed.panel_bytes_ = kTableBytes + size_t{kGroupBytes} * parts * ((steps + 1) / 2);
  absl::StatusOr<AlignedBuffer> groups =
      AlignedBuffer::Create(compressed.panel_bytes_ * static_cast<size_t>(panels));
  if (!groups.ok()) return groups.status();
  std::vector<Verbatim> verbatim(panels);
  pool->Run(panels, [&](int, int begin, int end) {
    for (int p = begin; p < end; ++p) {
      CompressPanel(raw + int64_t{p} * parts * steps * kWords, parts, steps,
                    static_cast<std::byte*>(groups->data()) + p * compressed.panel_bytes_,
                    &verbatim[p]);
    }
  });
  for (const Verbatim& of_panel : verbatim) {
    compressed.first_.push_back(compressed.steps_.size());
    compressed.steps_.insert(compressed.steps_.end(), of_panel.steps.begin(), of_panel.steps.end());
    compressed.steps_.push_back(kNoStep);
    compressed.verbatim_steps_ += static_cast<int64_t>(of_panel.steps.size());
  }
  if (compressed.verbatim_steps_ * kFewestPerVerbatim > int64_t{panels} * parts * steps) {
    return std::nullopt;
  }
  absl::StatusOr<AlignedBuffer> words =
      AlignedBuffer::Create(static_cast<size_t>(compressed.verbatim_steps_ + 1) * 2 * kWords);
  if (!words.ok()) return words.status();
  auto* to = static_cast<uint16_t*>(words->data());
  for (const Verbatim& of_panel : verbatim) {
    to = std::copy(of_panel.words.begin(), of_panel.words.end(), to);
  }
  compressed.groups_ = *std::move(groups);
  compressed.verbatim_ = *std::move(words);
  return compressed;
}

void CompressedPanels::Fill(int panel, PanelArgs* args) const {
  const std::byte* groups = static_cast<const std::byte*>(groups_.data()) + panel * panel_bytes_;
  args->weights = groups;
  args->next = groups + panel_bytes_;
  args->verbatim_steps = steps_.data() + first_[panel];
  // Every panel before this one has one end among its steps.
  args->verbatim = static_cast<const uint16_t*>(verbatim_.data()) +
                   (first_[panel] - static_cast<size_t>(panel)) * kWords;
}

}  // namespace specfabric::model::cpu
