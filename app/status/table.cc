#include "app/status/table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace specfabric::app {
namespace {

constexpr size_t kMostOfANumber = 7;

// Bytes of UTF-8 that continue a character.
bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

size_t Width(const std::string& text) {
  return text.size() - static_cast<size_t>(std::count_if(text.begin(), text.end(), Continues));
}

// Takes the first `width` characters off `text`.
std::string TakeFront(std::string* text, size_t width) {
  size_t end = 0;
  for (size_t taken = 0; end < text->size(); ++end) {
    if (!Continues((*text)[end]) && taken++ == width) break;
  }
  std::string front = text->substr(0, end);
  text->erase(0, end);
  return front;
}

}  // namespace

std::string Compact(double value, int decimals) {
  if (!std::isfinite(value)) return "-";
  const char* suffix = "";
  for (const char* next : {"M", "G", "T"}) {
    if (std::abs(value) < (*suffix == '\0' ? 1e6 : 1e3)) break;
    value /= *suffix == '\0' ? 1e6 : 1e3;
    suffix = next;
    decimals = 1;
  }
  std::string text;
  for (; decimals >= 0; --decimals) {
    text = absl::StrFormat("%.*f%s", decimals, value, suffix);
    if (text.size() <= kMostOfANumber) return text;
  }
  return value > 0 ? ">999T" : "<-999T";
}

std::string Printable(const std::string& text) {
  std::string result = text;
  for (char& byte : result) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(byte))) byte = '?';
  }
  return result;
}

std::string Wrapped(const std::vector<std::string>& words, size_t indent) {
  std::string text, line;
  for (std::string word : words) {
    const size_t space = line.empty() ? 0 : 1;
    if (!line.empty() && Width(line) + space + Width(word) > kColumns) {
      absl::StrAppend(&text, line, "\n");
      line.assign(indent, ' ');
    } else {
      line.append(space, ' ');
    }
    while (Width(line) + Width(word) > kColumns) {
      absl::StrAppend(&text, line, TakeFront(&word, kColumns - Width(line)), "\n");
      line.assign(indent, ' ');
    }
    line += word;
  }
  return absl::StrCat(text, line, "\n");
}

std::string Table(const std::vector<std::vector<std::string>>& rows, size_t texts) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], Width(row[c]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - Width(row[c]), ' ');
      absl::StrAppend(&line, c == 0 ? "" : "  ", c < texts ? row[c] : space,
                      c < texts ? space : row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace specfabric::app
