#ifndef SPECFABRIC_BASE_EXIT_CODE_H_
#define SPECFABRIC_BASE_EXIT_CODE_H_

// The exit codes of every process of the project.

namespace specfabric::base {

enum ExitCode : int {
  kExitOk = 0,
  kExitSurroundings = 1,  // port in use, peer gone, no such network
  kExitUsage = 2,         // something to mend in flags or files
  kExitBroken = 70,       // a step that hung or failed for good; EX_SOFTWARE of sysexits.h
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_EXIT_CODE_H_
