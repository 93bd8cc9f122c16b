#include "app/status/exposition.h"

#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace specfabric::app {
namespace {

constexpr std::string_view kSpace = " \t";

// Takes a double-quoted string with \\, \" and \n off the front of `text`.
bool TakeQuoted(std::string_view* text, std::string* value) {
  if (text->empty() || text->front() != '"') return false;
  for (size_t i = 1; i < text->size(); ++i) {
    char c = (*text)[i];
    if (c == '"') {
      text->remove_prefix(i + 1);
      return true;
    }
    if (c == '\\') {
      if (++i == text->size()) return false;
      c = (*text)[i] == 'n' ? '\n' : (*text)[i];
    }
    value->push_back(c);
  }
  return false;
}

// Takes {a="b",c="d"} off the front of `text`; a comma may follow the last one.
bool TakeLabels(std::string_view* text, MetricLabels* labels) {
  text->remove_prefix(1);
  while (!text->empty() && text->front() != '}') {
    const size_t equals = text->find('=');
    if (equals == std::string_view::npos || equals == 0) return false;
    std::string name(text->substr(0, equals)), value;
    text->remove_prefix(equals + 1);
    if (!TakeQuoted(text, &value)) return false;
    (*labels)[std::move(name)] = std::move(value);
    if (!text->empty() && text->front() == ',') text->remove_prefix(1);
  }
  if (text->empty()) return false;
  text->remove_prefix(1);
  return true;
}

bool ToNumber(std::string_view text, double* value) {
  if (text == "+Inf") {
    *value = std::numeric_limits<double>::infinity();
    return true;
  }
  return absl::SimpleAtod({text.data(), text.size()}, value);
}

bool ParseLine(std::string_view line, std::string* name, MetricSample* sample) {
  const size_t end = line.find_first_of("{ \t");
  if (end == std::string_view::npos || end == 0) return false;
  *name = line.substr(0, end);
  line.remove_prefix(end);
  if (line.front() == '{' && !TakeLabels(&line, &sample->labels)) return false;
  const size_t begin = line.find_first_not_of(kSpace);
  return begin != std::string_view::npos && ToNumber(line.substr(begin), &sample->value);
}

}  // namespace

absl::StatusOr<Exposition> Exposition::Parse(std::string_view text) {
  Exposition exposition;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    std::string name;
    MetricSample sample;
    if (!ParseLine(line, &name, &sample)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " is no metric"));
    }
    exposition.samples_[std::move(name)].push_back(std::move(sample));
  }
  return exposition;
}

const std::vector<MetricSample>& Exposition::Of(const std::string& name) const {
  static const auto* none = new std::vector<MetricSample>;
  const auto it = samples_.find(name);
  return it == samples_.end() ? *none : it->second;
}

double Exposition::Sum(const std::string& name, const MetricLabels& labels) const {
  double sum = 0;
  for (const MetricSample& sample : Of(name)) {
    bool matches = true;
    for (const auto& [label, value] : labels) {
      const auto it = sample.labels.find(label);
      matches = matches && it != sample.labels.end() && it->second == value;
    }
    if (matches) sum += sample.value;
  }
  return sum;
}

std::string Exposition::Label(const std::string& name, const std::string& label) const {
  const auto& samples = Of(name);
  if (samples.empty()) return "";
  const auto it = samples.front().labels.find(label);
  return it == samples.front().labels.end() ? "" : it->second;
}

}  // namespace specfabric::app
