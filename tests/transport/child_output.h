#ifndef SPECFABRIC_TESTS_TRANSPORT_CHILD_OUTPUT_H_
#define SPECFABRIC_TESTS_TRANSPORT_CHILD_OUTPUT_H_

// What the program of a ChildProcess tells its test.

#include <string>

namespace specfabric::transport {

// Keeps standard output for Say, and sends what else would go there, as logs, to standard error.
// Once, before anything is written. False: there is no descriptor left.
bool TakeOutput();
// A line for the test. After TakeOutput; from any thread.
void Say(const std::string& line);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TESTS_TRANSPORT_CHILD_OUTPUT_H_
