#ifndef SPECFABRIC_APP_STATUS_TABLE_H_
#define SPECFABRIC_APP_STATUS_TABLE_H_

// Text for a terminal of 80 columns.

#include <cstddef>
#include <string>
#include <vector>

namespace specfabric::app {

constexpr size_t kColumns = 80;

// As many decimals as fit, up to `decimals`, and never more than seven characters.
std::string Compact(double value, int decimals);

// `text` without what a terminal would act on: of a name that another process gave.
std::string Printable(const std::string& text);

// The words one after the other, on as many lines as they need, each but the first indented by
// `indent`. A word longer than a line is cut into several. Ends with a newline.
std::string Wrapped(const std::vector<std::string>& words, size_t indent);

// Rows of cells, the header first. Columns are as wide as their widest cell; the first `texts` of
// them stand to the left, numbers to the right. Ends with a newline.
std::string Table(const std::vector<std::vector<std::string>>& rows, size_t texts);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_STATUS_TABLE_H_
